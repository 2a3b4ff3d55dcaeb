"""``identilens alternatives``: other attention with the same output, put back into the model."""

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
from identilens.studies.alternatives.study import alternatives as run_alternatives


def alternatives(
    model: ModelOption,
    out: OutOption,
    text: TextOption = None,
    file: FileOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = "utf-8",
    layer: LayerOption = None,
    head: HeadOption = None,
    kind: KindOption = None,
    realisable: Annotated[
        bool, typer.Option("--realisable", help="Also find other queries, keys and parameters that do it.")
    ] = False,
    distance: Annotated[
        float, typer.Option(help="How far those are to go: mean total variation distance, in (0, 1).")
    ] = 0.1,
    starts: Annotated[int, typer.Option(help="Random starts a row in the search for a far alternative.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 0,
    max_length: MaxLengthOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    trust_remote_code: RemoteCodeOption = False,
) -> None:
    """Find other attention weights with the same output, put them back into the model, and measure what changes."""
    texts = read_texts(text or [], file, column or [], encoding)
    lens = load_lens(model, device, dtype, trust_remote_code)
    options = {
        "layers": layer, "heads": head, "kind": kind, "realisable": realisable, "distance": distance,
        "starts": starts, "seed": seed, "max_length": max_length,
    }  # fmt: skip
    folder = study_folder(out, "alternatives", lens, texts, options)
    with progress("heads") as update:
        result = run_alternatives(
            lens, texts, **options, out=folder, resume=resume, overwrite=overwrite, progress=update
        )  # fmt: skip
    result.show()
    report_study(out, folder)
