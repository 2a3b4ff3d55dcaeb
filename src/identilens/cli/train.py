"""``identilens train``: an identifiable encoder on one of ten text classification tasks."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from identilens.cli.common import OutOption, OverwriteOption, ResumeOption, console, progress, quiet_transformers
from identilens.encoder.configuration import Heads
from identilens.encoder.tasks import TASKS
from identilens.encoder.training import TrainingSettings, is_main_process
from identilens.encoder.training import train as run_training
from identilens.report import write_report

_DEFAULTS = TrainingSettings()

HeadsName = Literal["con", "concat", "add"]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder with the task's files, or one above it; the hub when not given.")
]
EpochsOption = Annotated[int, typer.Option(help="Passes over the training part; the best by validation is kept.")]
BatchSizeOption = Annotated[int, typer.Option(help="Texts in a step.")]
RateOption = Annotated[float, typer.Option("--learning-rate", help="Of Adam, constant.")]
PrecisionOption = Annotated[Literal["float32", "bf16", "fp16"], typer.Option(help="Of the matrix products.")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Train on a random choice of so many rows.")]
LengthOption = Annotated[int, typer.Option("--max-length", help="Tokens a text is cut to, [CLS] included.")]


def train(
    out: OutOption,
    task: Annotated[str, typer.Option("--task", help=f"One of {', '.join(TASKS)}.")],
    data: DataOption = None,
    hub: Annotated[str | None, typer.Option(help="Another hub id or folder for datasets than the task's own.")] = None,
    heads: Annotated[HeadsName, typer.Option(help="Put head outputs side by side (con) or add them.")] = "con",
    d_k: Annotated[int, typer.Option("--d-k", help="Size of queries and keys.")] = _DEFAULTS.d_k,
    d_v: Annotated[
        int | None, typer.Option("--d-v", help="Size of values; d_model / heads for con, d_model for add.")
    ] = None,
    layers: Annotated[int, typer.Option(help="Encoder layers.")] = _DEFAULTS.layers,
    d_model: Annotated[int, typer.Option("--d-model", help="Embedding size.")] = _DEFAULTS.d_model,
    attention_heads: Annotated[int, typer.Option(help="Number of heads.")] = _DEFAULTS.attention_heads,
    feed_forward: Annotated[int, typer.Option(help="Width of the feed-forward block.")] = _DEFAULTS.feed_forward,
    dropout: Annotated[float, typer.Option(help="Everywhere.")] = _DEFAULTS.dropout,
    max_length: LengthOption = _DEFAULTS.max_length,
    epochs: EpochsOption = _DEFAULTS.epochs,
    batch_size: BatchSizeOption = _DEFAULTS.batch_size,
    learning_rate: RateOption = _DEFAULTS.learning_rate,
    precision: PrecisionOption = _DEFAULTS.precision,
    limit: LimitOption = None,
    seed: Annotated[int, typer.Option(help="Of split, weights, dropout and order.")] = 0,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Train an identifiable encoder; the model, metrics of every epoch and test accuracy go to --out."""
    quiet_transformers()
    settings = TrainingSettings(
        heads=full_name(heads), d_k=d_k, d_v=d_v, layers=layers, d_model=d_model, attention_heads=attention_heads,
        feed_forward=feed_forward, dropout=dropout, max_length=max_length, epochs=epochs, batch_size=batch_size,
        learning_rate=learning_rate, precision=precision, limit=limit, seed=seed,
    )  # fmt: skip
    reporting = is_main_process()
    with progress("steps") if reporting else nullcontext() as update:
        found = run_training(
            task, out, data=data, hub=hub, settings=settings, resume=resume, overwrite=overwrite, progress=update
        )
    if reporting:
        found.show()
        console.print(f"model: {found.model_path}", soft_wrap=True)
        console.print(f"report: {write_report(out)}", soft_wrap=True)


def full_name(heads: str) -> Heads:
    """Return the configuration's word for the paper's: con, add."""
    return cast(Heads, {"con": "concat"}.get(heads, heads))
