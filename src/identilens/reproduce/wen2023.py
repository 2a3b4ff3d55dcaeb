"""Shared parts of the reproductions of Wen et al. 2023: settings of models, a run that can be resumed, and a page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from annotated_types import Ge

from identilens.dyck.embeddings import Minimal
from identilens.dyck.modeling import DyckForCausalLM
from identilens.dyck.settings import Data, DyckSetting, DyckTraining
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.progress import Progress
from identilens.runs.settings import Settings
from identilens.runs.tables import markdown_table
from identilens.studies.dyck_train.result import DyckRuns
from identilens.studies.dyck_train.study import folder_name, train_dyck

CONTRAST = 0.3
"""λ of the contrastive term."""

PUBLISHED_ACCURACY = 0.97
"""Least accuracy in distribution of the paper's models (section 4.1)."""

LOST = (
    "The paper's numbers of this table or figure are missing in the text that we have; only our measurements are given."
)


@dataclass(frozen=True, kw_only=True)
class WenSettings(Settings):
    """The number of models, and the length of their training.

    Attributes:
        seeds: Number of seeds of each setting.
        epochs: Number of epochs of every setting; the paper's by default.
        at_once: Number of seeds in one batched computation. An interrupted run repeats at most one of these.
        device: Device to train on.
    """

    seeds: Annotated[int, Ge(2)] = 30
    epochs: Annotated[int | None, Ge(1)] = None
    at_once: Annotated[int | None, Ge(1)] = None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class FewSeeds(WenSettings):
    """Ten seeds of each setting by default."""

    seeds: Annotated[int, Ge(2)] = 10


@dataclass(frozen=True, kw_only=True)
class ManySeeds(WenSettings):
    """Forty seeds of each setting by default."""

    seeds: Annotated[int, Ge(2)] = 40


@dataclass(frozen=True)
class Run:
    """How a reproduction runs; progress counts seeds, ``choices`` are those of every run (resume, engine, ...)."""

    settings: WenSettings
    progress: Progress | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)


def recipe(make: Callable[[Path, Run], Reproduction], settings_type: type[WenSettings] = WenSettings) -> Recipe:
    """Return the recipe of a figure or table of trained models."""

    def made(settings: WenSettings, out: Path, *, progress: Progress | None = None, **choices: Any) -> Reproduction:
        return make(out, Run(settings, progress, choices))

    made.__doc__ = make.__doc__
    return Recipe(settings_type, made, "seeds", shared=True)


def gpt(
    layers: int = 2, *, types: int = 2, depth: int = 4, positions: str = "none", hidden: int = 50
) -> dict[str, Any]:
    """Return the options of a standard transformer of the paper's experiments."""
    sizes = {"hidden_size": hidden, "intermediate_size": hidden}
    return {"bracket_types": types, "max_depth": depth, "num_hidden_layers": layers, "positions": positions, **sizes}


def behind(first_layer: Minimal) -> dict[str, Any]:
    """Return the options of a model after a minimal first layer."""
    return {"block": "minimal", "first_layer": first_layer, "num_hidden_layers": 1}


def deep(rate: float = 3e-3, data: Data = "complete") -> DyckTraining:
    """Return the training settings of 2- and 3-layer models (D.1)."""
    return DyckTraining(learning_rate=rate, data=data, epochs=40)


def shallow(rate: float = 1e-2, epochs: int = 10, **changed: Any) -> DyckTraining:
    """Return the training settings of models after a minimal first layer (D.1); Eq. 20 and 21 need over 10 epochs."""
    return DyckTraining(learning_rate=rate, epochs=epochs, **changed)


def run_settings(out: Path, settings: Sequence[DyckSetting], run: Run) -> DyckRuns:
    """Return the trained models of a reproduction; the run is in ``out/run`` and can be resumed."""
    how = run.settings
    if how.epochs is not None:
        settings = [replace(one, training=replace(one.training, epochs=how.epochs)) for one in settings]
    return train_dyck(
        settings, seeds=range(how.seeds), at_once=how.at_once, device=how.device,
        out=out / "run", progress=run.progress, **run.choices,
    )  # fmt: skip


def models_of(result: DyckRuns, setting: DyckSetting) -> list[DyckForCausalLM]:
    """Return the models that a run in a folder has saved for a setting, by seed."""
    folder = (result.folder or Path()) / "models" / folder_name(setting.name)
    return [DyckForCausalLM.from_pretrained(one).eval() for one in sorted(folder.glob("seed*"))]


def reproduction(
    name: str, source: str, result: DyckRuns, settings: Sequence[DyckSetting], run: Run, findings: str,
    tables: Mapping[str, pl.DataFrame] | None = None, figures: tuple[str, ...] = ("",),
) -> Reproduction:  # fmt: skip
    """Return a reproduction with the tables and figures that all have, and further tables by file name.

    ``figures`` are the beginnings of the names of figures to draw; all by default.
    """
    charts = {title: chart for title, chart in result.charts().items() if title.startswith(figures)}
    used: dict[str, Any] = {"seeds": run.settings.seeds}
    for one in settings:
        used[one.name] = ", ".join(f"{key} {value}" for key, value in {**one.config, **asdict(one.training)}.items())
    if run.settings.epochs is not None:
        used["epochs, instead of the paper's"] = run.settings.epochs
    shared = {
        "runs": result.table, "means": result.means(), "variation": result.variation, "heads": result.heads,
        "misleading": result.misleading(),
    }  # fmt: skip
    return Reproduction(
        name, source, used, {**shared, **(tables or {})}, f"{accuracy(result)}\n\n{findings}", charts, 0
    )


def accuracy(result: DyckRuns) -> str:
    """Return accuracies as a Markdown table, and how many models reach the paper's accuracy in distribution."""
    shown = ["setting", "seeds", "argmax", "threshold", "long_argmax", "long_threshold"]
    models = result.table.sort("argmax")
    reached = int((models["argmax"] >= PUBLISHED_ACCURACY).sum())
    least = models.row(0, named=True)
    return (
        f"{markdown_table(result.means().select(shown))}\n\n"
        f"In distribution {reached} of {len(models)} models close at least {100 * PUBLISHED_ACCURACY:.0f} % of the "
        f"brackets correctly, as the paper reports for all its models; the least is {100 * least['argmax']:.2f} % "
        f"({least['setting']}, seed {least['seed']}). Long prefixes have 400 to 500 brackets."
    )


def variations(result: DyckRuns) -> str:
    """Return the attention variation as a Markdown table, with and without the start token."""
    rows = result.variation.with_columns(
        pl.col("error").fill_nan(None), start=pl.when("with_start").then(pl.lit("in")).otherwise(pl.lit("out"))
    )
    shown = rows.select(
        "setting", "layer", "head", "start", "size", "seeds", "value", "error", "even_on_simplex", "softmax_of_normals"
    )
    return (
        f"{markdown_table(shown)}\n\nVariation is the mean of ‖A₁ − A₂‖² (Frobenius) over pairs of seeds, "
        "patterns causal, with its standard error over seeds; the last two columns are random causal patterns: rows "
        "uniform on the simplex, and softmax of standard normal logits."
    )


def misleading(result: DyckRuns) -> str:
    """Return how many heads look like a stack and are used, as a Markdown table."""
    return markdown_table(result.misleading())
