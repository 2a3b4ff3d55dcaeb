"""Comprehensiveness and sufficiency (DeYoung et al. 2020) of explanations of classifiers fine-tuned on three tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import polars as pl
from annotated_types import Ge

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose, intervals
from identilens.models.loading import load
from identilens.reproduce.brunner2020 import BrunnerSettings
from identilens.reproduce.fine_tuned import FineTuning, Task, held_out, tuned_model
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.progress import Progress
from identilens.runs.settings import LIST
from identilens.runs.tables import markdown_table
from identilens.studies.faithfulness.means import differences, means
from identilens.studies.rationales.study import rationales

MEASURES = ("comprehensiveness", "sufficiency")


@dataclass(frozen=True, kw_only=True)
class TaskSettings(BrunnerSettings, FineTuning):
    """The tasks, how the model is fine-tuned on them, and the control.

    Attributes:
        tasks: Tasks, separated by commas.
        repeats: Number of fine-tunings of each task, with growing seeds.
        seed: Seed of the first fine-tuning, and of its random orders.
        limit: Number of texts of each task's validation part, from the first on.
        draws: Number of random orders of the tokens of each text, the control.
        attribution: Also gradient × input, integrated gradients and occlusion, which need captum.
    """

    tasks: Annotated[tuple[Task, ...], LIST] = ("sst", "mrpc", "cola")
    repeats: Annotated[int, Ge(1)] = 3
    limit: Annotated[int | None, Ge(1)] = 200
    draws: Annotated[int, Ge(1)] = 5
    attribution: bool = True


def faithfulness_tasks(
    settings: TaskSettings, out: Path, *, progress: Progress | None = None, **run: bool
) -> Reproduction:
    """Are explanations of classifiers of SST, MRPC and CoLA faithful: comprehensiveness and sufficiency."""
    tables, weights = [], {}
    for task in settings.tasks:
        for seed in range(settings.seed, settings.seed + settings.repeats):
            tested, digest = _tested(task, seed, settings, out, progress, run)
            tables.append(tested)
            weights[f"parameters, {task}, seed {seed} (sha256)"] = digest
    table = pl.concat(tables)
    right = pl.col("predicted") == pl.col("label")
    found = {
        "accuracy": table.group_by("task", "seed", maintain_order=True).agg(
            accuracy=right.mean(), texts=pl.col("text").n_unique()
        ),
        **{measure: means(table, ["task", "explanation"], measure) for measure in MEASURES},
        **{_against(measure): differences(table, ["task"], measure, "random") for measure in MEASURES},
    }
    shown = [f"{words}:\n\n{markdown_table(found[name])}" for name, words in _SHOWN.items()]
    charts = {name: _chart(found[name], measure) for measure in MEASURES for name in [_against(measure)]}
    return Reproduction(
        "faithfulness-tasks", "DeYoung et al. 2020, section 4.2", {**settings.recorded(), **weights},
        {"rationales": table, **found}, "\n\n".join(shown), charts, settings.seed,
    )  # fmt: skip


def _against(measure: str) -> str:
    return f"{measure}_against_random"


_SHOWN = {
    "accuracy": "Accuracy on the texts that were tested",
    "comprehensiveness": "Comprehensiveness (larger is better), mean over texts and seeds, 95 % interval over texts",
    _against("comprehensiveness"): "Comprehensiveness, difference to random tokens of the same texts",
    "sufficiency": "Sufficiency (smaller is better), mean over texts and seeds, 95 % interval over texts",
    _against("sufficiency"): "Sufficiency, difference to random tokens of the same texts",
}


def _chart(against: pl.DataFrame, measure: str) -> AnyChart:
    title = f"{measure.capitalize()} against random tokens"
    chart = intervals(
        against.drop("texts"), "explanation", "low", "high", "mean", x_title="Difference", title=title,
        height=17 * against["explanation"].n_unique() + 10,
    )  # fmt: skip
    return choose(chart, "task", "Task", against["task"].unique(maintain_order=True).to_list())


def _tested(
    task: Task, seed: int, settings: TaskSettings, out: Path, progress: Progress | None, run: dict[str, bool]
) -> tuple[pl.DataFrame, str]:
    """Return one fine-tuned model's table, with task, seed and labels, and its digest; what is finished is kept."""
    how = FineTuning(**{**settings.values_of(FineTuning), "seed": seed})
    tuned = tuned_model(
        task, settings.model, settings.data, out / f"seed{seed}", how, progress, overwrite=run.get("overwrite", False)
    )
    texts, labels = held_out(task, settings.data, settings.limit)
    found = rationales(
        load(tuned), texts, draws=settings.draws, attribution=settings.attribution, max_length=settings.longest,
        seed=seed, out=out / f"{task}-seed{seed}", progress=progress, **run,
    )  # fmt: skip
    named = pl.DataFrame({"text": range(len(labels)), "label": labels})
    table = found.table.join(named, on="text", how="left", maintain_order="left").select(
        pl.lit(task).alias("task"), pl.lit(seed).alias("seed"), pl.all()
    )
    return table, found.provenance["model"]["sha256"]


RECIPE = Recipe(TaskSettings, faithfulness_tasks, "texts")
