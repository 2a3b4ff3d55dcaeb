"""``identilens reproduce bhardwaj2021-…``: Table 1 and Figures 2, 5 and 6 of Bhardwaj et al. 2021."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import OverwriteOption, ResumeOption, parse_numbers, progress, quiet_transformers
from identilens.cli.reproduce import ReproductionOut, finish
from identilens.cli.train import DataOption, EpochsOption, LimitOption, PrecisionOption
from identilens.encoder.configuration import Heads
from identilens.encoder.published import D_K
from identilens.encoder.tasks import TASKS
from identilens.encoder.training import TrainingSettings
from identilens.models import Lens
from identilens.reproduce.bhardwaj2021_figure2 import LENGTHS, rank_figure
from identilens.reproduce.bhardwaj2021_figure5 import figure5 as run_figure5
from identilens.reproduce.bhardwaj2021_reviews import reviews, trained_encoder
from identilens.reproduce.bhardwaj2021_table1 import table1 as run_table1

_DEFAULTS = TrainingSettings()

EncoderOption = Annotated[
    Path | None,
    typer.Option("--model", "-m", help="Folder of a trained encoder; one is trained on IMDB when not given."),
]
SeedOption = Annotated[int, typer.Option(help="Of training and of the choice of reviews.")]


def table1(
    out: ReproductionOut,
    tasks: Annotated[str, typer.Option("--tasks", help=f"With commas between: {', '.join(TASKS)}.")] = "trec",
    data: DataOption = None,
    d_k: Annotated[str, typer.Option("--d-k", help="Sizes of queries and keys.")] = ",".join(map(str, D_K)),
    seeds: Annotated[str, typer.Option("--seeds", help="A run each; the paper has one.")] = "0",
    epochs: EpochsOption = _DEFAULTS.epochs,
    precision: PrecisionOption = _DEFAULTS.precision,
    limit: LimitOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Test accuracy of Con and Add encoders by key size, on ten tasks."""
    quiet_transformers()
    settings = TrainingSettings(epochs=epochs, precision=precision, limit=limit)
    with progress("runs") as update:
        found = run_table1(
            out, tasks=[name.strip() for name in tasks.split(",")], data=data, d_k=parse_numbers("--d-k", d_k),
            seeds=parse_numbers("--seeds", seeds), settings=settings, resume=resume, overwrite=overwrite,
            progress=update,
        )  # fmt: skip
    finish(found, out)


def _rank_command(figure: str, heads: Heads, help_text: str) -> Callable[..., None]:
    def command(
        out: ReproductionOut,
        model: EncoderOption = None,
        data: DataOption = None,
        reviews_each: Annotated[int, typer.Option("--reviews", min=1, help="Reviews for each length.")] = 100,
        epochs: EpochsOption = _DEFAULTS.epochs,
        precision: PrecisionOption = _DEFAULTS.precision,
        limit: LimitOption = None,
        seed: SeedOption = 0,
        resume: ResumeOption = False,
        overwrite: OverwriteOption = False,
    ) -> None:
        settings = TrainingSettings(epochs=epochs, precision=precision, limit=limit, seed=seed)
        lens = _encoder(out, heads, model, data, settings, resume, overwrite)
        with progress("lengths") as update:
            found = rank_figure(
                figure, lens, reviews(data), lengths=LENGTHS, per_length=reviews_each, seed=seed, progress=update
            )
        finish(found, out)

    command.__doc__ = help_text
    return command


def figure5(
    out: ReproductionOut,
    model: EncoderOption = None,
    data: DataOption = None,
    count: Annotated[int, typer.Option(min=1, help="Alternatives of each review.")] = 1000,
    reviews_chosen: Annotated[int, typer.Option("--reviews", min=1, help="Reviews of 66 to 128 tokens.")] = 63,
    epochs: EpochsOption = _DEFAULTS.epochs,
    precision: PrecisionOption = _DEFAULTS.precision,
    limit: LimitOption = None,
    seed: SeedOption = 0,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Least logit rank of random alternatives against what queries and keys can produce."""
    settings = TrainingSettings(epochs=epochs, precision=precision, limit=limit, seed=seed)
    lens = _encoder(out, "concat", model, data, settings, resume, overwrite)
    with progress("reviews") as update:
        found = run_figure5(lens, reviews(data), reviews=reviews_chosen, count=count, seed=seed, progress=update)
    finish(found, out)


def _encoder(
    out: Path,
    heads: Heads,
    model: Path | None,
    data: Path | None,
    settings: TrainingSettings,
    resume: bool,
    overwrite: bool,
) -> Lens:
    quiet_transformers()
    with progress("training steps") as update:
        return trained_encoder(
            out, heads, model=model, data=data, settings=settings, resume=resume, overwrite=overwrite, progress=update
        )


COMMANDS = {
    "bhardwaj2021-table1": table1,
    "bhardwaj2021-figure2": _rank_command("2", "concat", "Rank and nullity of T by text length in a Con encoder."),
    "bhardwaj2021-figure5": figure5,
    "bhardwaj2021-figure6": _rank_command("6", "add", "Rank and nullity of T by text length in an Add encoder."),
}
"""By name on the command line."""
