"""Shared parts of the reproductions of Wen et al. 2023: settings of models, a run that can be resumed, and a page."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from annotated_types import Ge

from identilens.errors import InputError
from identilens.lab.dyck.embeddings import Minimal
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.settings import Data, DyckSetting, DyckTraining
from identilens.lab.dyck.train.result import DyckRuns
from identilens.lab.dyck.train.study import folder_name, train_dyck
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.progress import Progress
from identilens.runs.settings import Settings
from identilens.runs.tables import markdown_table

CONTRAST = 0.3
"""λ of the contrastive term."""

ACCURATE = 0.97
"""Accuracy in distribution that counts as learned; the paper's own (section 4.1) is missing in the available text."""

LOST = "The paper's numbers of this table or figure are missing in the available text; only our measurements are given."

RANDOM = (
    "Random patterns are treated as the models' are: causal, over all tokens with the start token, whose row and "
    "column are then left out without scaling the rest."
)
"""How random patterns are compared with the models' where the start token is left out."""


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


def trained_run(folder: Path, settings: Sequence[DyckSetting]) -> DyckRuns:
    """Return the finished run of a folder, which has trained models of these settings.

    Raises:
        InputError: If it has none of a setting's name, or made them with another configuration.
        OutputFolderError: If the folder contains no finished run.
    """
    found = DyckRuns.load(folder)
    there = training_of(found)
    for one in settings:
        if one.name not in there:
            raise InputError(f"{folder} has no models of the setting {one.name!r}; it has {', '.join(there)}.")
        if there[one.name]["config"] != one.config:
            raise InputError(f"{folder} has other models of the setting {one.name!r}: {there[one.name]['config']}.")
    return found


def training_of(found: DyckRuns) -> dict[str, dict[str, Any]]:
    """Return configuration, and settings of training, of each setting of a run, by its name."""
    return {one["name"]: one for one in map(json.loads, found.provenance["settings"]["settings"])}


def models_of(result: DyckRuns, setting: DyckSetting) -> list[DyckForCausalLM]:
    """Return the models that a run in a folder has saved for a setting, by seed.

    Raises:
        InputError: If the folder lacks the model of a seed.
    """
    folder = (result.folder or Path()) / "models" / folder_name(setting.name)
    places = [folder / f"seed{seed:03d}" for seed in result.table.filter(setting=setting.name)["seed"].sort()]
    for place in places:
        if not place.is_dir():
            raise InputError(f"{place} is missing: the run has a model of this seed. Train it again.")
    return [DyckForCausalLM.from_pretrained(place).eval() for place in places]


def reproduction(
    name: str, source: str, result: DyckRuns, settings: Sequence[DyckSetting], run: Run, findings: str,
    tables: Mapping[str, pl.DataFrame] | None = None, figures: tuple[str, ...] = ("",),
) -> Reproduction:  # fmt: skip
    """Return a reproduction with the tables and figures that all have, and further tables by file name.

    ``figures`` are the beginnings of the names of figures to draw; all by default.
    """
    charts = {title: chart for title, chart in result.charts().items() if title.startswith(figures)}
    shared = {
        "runs": result.table, "means": result.means(), "variation": result.variation, "heads": result.heads,
        "misleading": result.misleading(),
    }  # fmt: skip
    used = used_settings(result, settings)
    return Reproduction(
        name, source, used, {**shared, **(tables or {})}, f"{accuracy(result)}\n\n{findings}", charts, 0
    )


def used_settings(found: DyckRuns, settings: Sequence[DyckSetting]) -> dict[str, Any]:
    """Return how the models of some settings were trained, by the record of their run."""
    records, names = training_of(found), [one.name for one in settings]
    used: dict[str, Any] = {"seeds": found.table.filter(pl.col("setting").is_in(names))["seed"].n_unique()}
    for name in names:
        training = {key: value for key, value in records[name].items() if key not in ("name", "config")}
        used[name] = ", ".join(f"{key} {value}" for key, value in {**records[name]["config"], **training}.items())
    other = {records[one.name]["epochs"] for one in settings if records[one.name]["epochs"] != one.training.epochs}
    return used | ({"epochs, instead of the paper's": ", ".join(map(str, sorted(other)))} if other else {})


def accuracy(result: DyckRuns) -> str:
    """Return accuracies as a Markdown table, and how many models have learned the language in distribution."""
    shown = ["setting", "seeds", "argmax", "threshold", "long_argmax", "long_threshold"]
    models = result.table.sort("argmax")
    reached = int((models["argmax"] >= ACCURATE).sum())
    least = models.row(0, named=True)
    return (
        f"{markdown_table(result.means().select(shown))}\n\n"
        f"In distribution {reached} of {len(models)} models close at least {100 * ACCURATE:.0f} % of the brackets "
        "correctly. The paper gives one number that all its models reach; it is missing in the available text. The "
        f"least is {100 * least['argmax']:.2f} % ({least['setting']}, seed {least['seed']}). Long prefixes have 400 to "
        "500 brackets."
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
        f"uniform on the simplex, and softmax of standard normal logits. {RANDOM}"
    )


def misleading(result: DyckRuns) -> str:
    """Return how many heads look like a stack and are used, as a Markdown table."""
    return markdown_table(result.misleading())
