"""What the reproductions of Wen et al. 2023 share: the settings of their models, one resumable run, one page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from identilens.dyck.embeddings import Minimal
from identilens.dyck.settings import Data, DyckSetting, DyckTraining
from identilens.report.dyck_figures import dyck_sheets
from identilens.reproduce.record import Reproduction
from identilens.results.dyck import DyckRuns
from identilens.results.stored import markdown_table
from identilens.studies.dyck_train.measuring import Measuring
from identilens.studies.dyck_train.study import Watch, train_dyck

CONTRAST = 0.3
"""λ of the contrastive term."""

PUBLISHED_ACCURACY = 0.97
"""What every model of the paper reaches at least in distribution (section 4.1)."""

LOST = (
    "The paper's own numbers of this table or figure are lost in the text at hand; what is measured here stands by "
    "itself."
)


@dataclass(frozen=True)
class Run:
    """How a reproduction is run.

    Attributes:
        seeds: Seeds of each setting.
        epochs: Epochs of every setting; the paper's when not given.
        at_once: Seeds in one stack.
        device: Where to train.
        resume: Go on with an interrupted run.
        overwrite: Drop the run in the folder.
        progress: Called with (seeds done, seeds in all).
        watch: Called with a line on what is being done.
    """

    seeds: int
    epochs: int | None = None
    at_once: int | None = None
    device: str = "cpu"
    resume: bool = False
    overwrite: bool = False
    progress: Callable[[int, int], None] | None = None
    watch: Watch | None = None


def gpt(
    layers: int = 2, *, types: int = 2, depth: int = 4, positions: str = "none", hidden: int = 50
) -> dict[str, Any]:
    """Return the options of a standard transformer of the paper's experiments."""
    sizes = {"hidden_size": hidden, "intermediate_size": hidden}
    return {"bracket_types": types, "max_depth": depth, "num_hidden_layers": layers, "positions": positions, **sizes}


def behind(first_layer: Minimal) -> dict[str, Any]:
    """Return the options of a model behind a minimal first layer."""
    return {"block": "minimal", "first_layer": first_layer, "num_hidden_layers": 1}


def deep(rate: float = 3e-3, data: Data = "complete") -> DyckTraining:
    """Return how 2- and 3-layer models are trained (D.1)."""
    return DyckTraining(learning_rate=rate, data=data, epochs=40)


def shallow(
    rate: float = 1e-2,
    data: Data = "complete",
    contrast: float = 0.0,
    weight_decay: float = 0.0,
    epochs: int = 10,
) -> DyckTraining:
    """Return how models behind a minimal first layer are trained (D.1); 10 epochs are too few for Eq. 20 and 21."""
    return DyckTraining(learning_rate=rate, data=data, contrast=contrast, weight_decay=weight_decay, epochs=epochs)


def run_settings(out: Path, settings: Sequence[DyckSetting], run: Run) -> DyckRuns:
    """Return the trained models of a reproduction; the run lies in ``out/run`` and can be resumed."""
    if run.epochs is not None:
        settings = [replace(one, training=replace(one.training, epochs=run.epochs)) for one in settings]
    return train_dyck(
        settings,
        tuple(range(run.seeds)),
        at_once=run.at_once,
        measuring=Measuring(),
        device=run.device,
        out=out / "run",
        resume=run.resume,
        overwrite=run.overwrite,
        progress=run.progress,
        watch=run.watch,
    )


def reproduction(
    name: str,
    source: str,
    found: DyckRuns,
    settings: Sequence[DyckSetting],
    run: Run,
    findings: str,
    tables: Mapping[str, pl.DataFrame] | None = None,
    figures: Sequence[str] | None = None,
) -> Reproduction:
    """Return a reproduction with the tables and figures that all of them have.

    Args:
        name: As on the command line.
        source: Paper and number.
        found: The trained models.
        settings: What was trained.
        run: How.
        findings: What this figure or table shows.
        tables: More tables, by file name.
        figures: Beginnings of the names of the figures to draw; all when not given.
    """
    sheets: dict[str, Callable[[], Figure]] = {
        title: draw for title, draw in dyck_sheets(found).items() if figures is None or title.startswith(tuple(figures))
    }
    used: dict[str, Any] = {"seeds": run.seeds}
    for one in settings:
        used[one.name] = ", ".join(f"{key} {value}" for key, value in {**one.config, **asdict(one.training)}.items())
    if run.epochs is not None:
        used["epochs, in place of the paper's"] = run.epochs
    shared = {
        "runs": found.table,
        "means": found.means(),
        "variation": found.variation,
        "heads": found.heads,
        "misleading": found.misleading(),
    }
    return Reproduction(name, source, used, {**shared, **(tables or {})}, f"{accuracy(found)}\n\n{findings}", sheets, 0)


def accuracy(found: DyckRuns) -> str:
    """Return accuracies as a Markdown table, and how many models reach what the paper reports in distribution."""
    shown = ["setting", "seeds", "argmax", "threshold", "long_argmax", "long_threshold"]
    models = found.table.sort("argmax")
    reached = int((models["argmax"] >= PUBLISHED_ACCURACY).sum())
    least = models.row(0, named=True)
    return (
        f"{markdown_table(found.means().select(shown))}\n\n"
        f"In distribution {reached} of {len(models)} models close at least {100 * PUBLISHED_ACCURACY:.0f} % of the "
        f"brackets right, what the paper reports for all of its own; the least is {100 * least['argmax']:.2f} % "
        f"({least['setting']}, seed {least['seed']}). Long prefixes have 400 to 500 brackets."
    )


def variations(found: DyckRuns) -> str:
    """Return the attention variation as a Markdown table, start token left out and counted."""
    rows = found.variation.with_columns(
        pl.col("error").fill_nan(None), start=pl.when("with_start").then(pl.lit("in")).otherwise(pl.lit("out"))
    )
    shown = [
        "setting", "layer", "head", "start", "size", "seeds", "value", "error", "even_on_simplex", "softmax_of_normals",
    ]  # fmt: skip
    return (
        f"{markdown_table(rows.select(shown))}\n\nVariation is the mean of ‖A₁ − A₂‖² (Frobenius) over pairs of seeds, "
        "patterns causal, with its standard error over seeds; the last two columns are random causal patterns: rows "
        "even on the simplex, and softmax of standard normal logits."
    )


def misleading(found: DyckRuns) -> str:
    """Return how many heads look like a stack and are used, as a Markdown table."""
    return markdown_table(found.misleading())
