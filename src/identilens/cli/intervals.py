"""``identilens intervals``: what is certain of each attention weight."""

from typing import Annotated

import typer

from identilens.cli.common import (
    ColumnOption,
    DeviceOption,
    DtypeOption,
    EncodingOption,
    FileOption,
    HeadOption,
    KindOption,
    LayerOption,
    MaxLengthOption,
    ModelOption,
    OutOption,
    OverwriteOption,
    RemoteCodeOption,
    ResumeOption,
    TextOption,
    load_lens,
    progress,
)
from identilens.cli.joining import report_study, study_folder
from identilens.cli.texts import read_texts
from identilens.studies.intervals.study import intervals as run_intervals


def intervals(
    model: ModelOption,
    out: OutOption,
    text: TextOption = None,
    file: FileOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = "utf-8",
    layer: LayerOption = None,
    head: HeadOption = None,
    kind: KindOption = None,
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", help="Token or position of a row; all rows by default.")
    ] = None,
    max_length: MaxLengthOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    trust_remote_code: RemoteCodeOption = False,
) -> None:
    """Bound every weight of attention rows: the range it may take while the head's output stays as it is."""
    texts = read_texts(text or [], file, column or [], encoding)
    lens = load_lens(model, device, dtype, trust_remote_code)
    options = {"layers": layer, "heads": head, "kind": kind, "queries": query or None, "max_length": max_length}
    folder = study_folder(out, "intervals", lens, texts, options)
    with progress("rows") as update:
        result = run_intervals(
            lens, texts, **options, out=folder, resume=resume, overwrite=overwrite, progress=update
        )  # fmt: skip
    result.show()
    report_study(out, folder)
