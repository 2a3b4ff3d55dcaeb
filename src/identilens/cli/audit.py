"""``identilens audit``: how much of each attention map has no effect on the output."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from identilens.attention.audit import AuditSettings
from identilens.attention.audit import audit as run_audit
from identilens.cli.common import (
    ColumnOption,
    DeviceOption,
    DtypeOption,
    EncodingOption,
    FileOption,
    MaxLengthOption,
    ModelOption,
    OutOption,
    OverwriteOption,
    RemoteCodeOption,
    ResumeOption,
    TextOption,
    console,
    load_lens,
    parse_layers,
    progress,
)
from identilens.cli.texts import read_texts


def audit(
    model: ModelOption,
    out: OutOption,
    text: TextOption = None,
    file: FileOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = "utf-8",
    matrices: Annotated[bool, typer.Option("--matrices", help="Keep raw, effective and null attention.")] = False,
    examples: Annotated[int, typer.Option(help="Keep them for so many texts of at most 128 tokens.")] = 3,
    layers: Annotated[str | None, typer.Option(help="Layers to audit, such as 0,3,5-8; all by default.")] = None,
    batch_size: Annotated[int, typer.Option(help="Texts in one forward pass.")] = 8,
    max_length: MaxLengthOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
    stream: Annotated[
        Literal["auto", "always", "never"], typer.Option(help="Never hold whole weights: linear memory.")
    ] = "auto",
    value_bias: Annotated[Literal["in", "out"], typer.Option(help="Leave the value bias in, or take it out.")] = "in",
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    trust_remote_code: RemoteCodeOption = False,
) -> None:
    """Say for every layer and head how much of the attention map has no effect on the head's output."""
    texts = read_texts(text or [], file, column or [], encoding)
    settings = AuditSettings(
        layers=parse_layers(layers),
        batch_size=batch_size,
        max_length=max_length,
        stream=stream,
        matrices=matrices,
        examples=0 if matrices else examples,
        value_bias=value_bias,
    )
    lens = load_lens(model, device, dtype, trust_remote_code)
    with progress("texts") as update:
        result = run_audit(lens, texts, out=out, resume=resume, overwrite=overwrite, progress=update, settings=settings)
    result.show()
    report = result.to_html(Path(out) / "report.html")
    console.print(f"report: {report}", soft_wrap=True)
