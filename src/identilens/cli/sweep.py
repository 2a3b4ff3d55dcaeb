"""``identilens sweep``: many training runs, one row each, beside the published table."""

from typing import Annotated

import typer

from identilens.cli.common import (
    OutOption,
    OverwriteOption,
    ResumeOption,
    console,
    parse_numbers,
    progress,
    quiet_transformers,
)
from identilens.cli.train import (
    BatchSizeOption,
    DataOption,
    EpochsOption,
    LengthOption,
    LimitOption,
    PrecisionOption,
    RateOption,
    full_name,
)
from identilens.encoder.published import D_K
from identilens.encoder.tasks import TASKS
from identilens.encoder.training import TrainingSettings
from identilens.errors import InputError
from identilens.report import write_report
from identilens.studies.sweep.study import sweep as run_sweep

_DEFAULTS = TrainingSettings()


def sweep(
    out: OutOption,
    tasks: Annotated[str, typer.Option("--tasks", help=f"With commas between: {', '.join(TASKS)}.")],
    data: DataOption = None,
    heads: Annotated[str, typer.Option("--heads", help="con, add, or both with a comma between.")] = "con,add",
    d_k: Annotated[str, typer.Option("--d-k", help="Sizes of queries and keys, such as 1,2,64.")] = ",".join(
        map(str, D_K)
    ),
    seeds: Annotated[str, typer.Option("--seeds", help="Such as 0-4; a run each.")] = "0",
    max_length: LengthOption = _DEFAULTS.max_length,
    epochs: EpochsOption = _DEFAULTS.epochs,
    batch_size: BatchSizeOption = _DEFAULTS.batch_size,
    learning_rate: RateOption = _DEFAULTS.learning_rate,
    precision: PrecisionOption = _DEFAULTS.precision,
    limit: LimitOption = None,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep each run's model.")] = False,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Train every combination of tasks, heads, key sizes and seeds; print Table 1, measured beside published."""
    kinds = [name.strip() for name in heads.split(",")]
    wrong = [name for name in kinds if name not in ("con", "concat", "add")]
    if wrong:
        raise InputError(f"--heads takes con, add, or both with a comma between; got {heads!r}.")
    quiet_transformers()
    settings = TrainingSettings(
        max_length=max_length, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate,
        precision=precision, limit=limit,
    )  # fmt: skip
    with progress("runs") as update:
        found = run_sweep(
            [name.strip() for name in tasks.split(",")], out, heads=[full_name(name) for name in kinds],
            d_k=parse_numbers("--d-k", d_k), seeds=parse_numbers("--seeds", seeds), data=data, settings=settings,
            keep_models=keep_models, resume=resume, overwrite=overwrite, progress=update,
        )  # fmt: skip
    found.show()
    console.print(f"report: {write_report(out)}", soft_wrap=True)
