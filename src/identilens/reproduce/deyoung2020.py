"""Comprehensiveness and sufficiency (DeYoung et al. 2020) of explanations of classifiers fine-tuned on three tasks."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose, intervals
from identilens.models.loading import load
from identilens.reproduce.inputs import FineTuning, TaskSettings, held_out, tuned_model
from identilens.reproduce.record import Figure, Reproduction
from identilens.runs.progress import Progress
from identilens.runs.settings import Positive
from identilens.runs.tables import markdown_table
from identilens.studies.faithfulness.result import differences, means
from identilens.studies.rationales.study import rationales

MEASURES = {"comprehensiveness": "larger", "sufficiency": "smaller"}
"""Each measure, and whether larger or smaller values are better."""


@dataclass(frozen=True, kw_only=True)
class RepeatedSettings(TaskSettings):
    """The tasks, how the model is fine-tuned on them, and the control.

    Attributes:
        repeats: Number of fine-tunings of each task, with growing seeds.
        seed: Seed of the first fine-tuning, and of its random orders.
        draws: Number of random orders of the tokens of each text, the control.
        attribution: Also gradient × input, integrated gradients and occlusion, which need captum.
    """

    repeats: Positive = 3
    draws: Positive = 5
    attribution: bool = True


def against_random(table: pl.DataFrame, measure: str) -> AnyChart:
    """Return the differences to random tokens with their intervals, of one task at a time."""
    chart = intervals(
        table.drop("texts"),
        "explanation",
        "low",
        "high",
        "mean",
        x_title="Difference",
        title=f"{measure.capitalize()} against random tokens",
    )
    return choose(chart, "task", "Task", table["task"].unique(maintain_order=True).to_list())


def deyoung2020(
    settings: RepeatedSettings, out: Path, *, progress: Progress | None = None, **run: bool
) -> Reproduction:
    """Return comprehensiveness and sufficiency of explanations of classifiers of SST, MRPC and CoLA."""
    tables, weights = [], {}
    for task in settings.tasks:
        texts, labels = held_out(task, settings.data, settings.limit)
        named = pl.DataFrame({"text": range(len(labels)), "label": labels})
        for seed in range(settings.seed, settings.seed + settings.repeats):
            how = FineTuning(**{**settings.values_of(FineTuning), "seed": seed})
            folder, overwrite = out / f"seed{seed}", run.get("overwrite", False)
            model, data = settings.model, settings.data
            tuned = tuned_model(task, model, data, folder, how, progress, overwrite=overwrite)
            result = rationales(
                load(tuned),
                texts,
                draws=settings.draws,
                attribution=settings.attribution,
                max_length=settings.longest,
                seed=seed,
                out=out / f"{task}-seed{seed}",
                progress=progress,
                **run,
            )
            labelled = result.table.join(named, on="text", how="left", maintain_order="left")
            tables.append(
                labelled.select(pl.lit(task).alias("task"), pl.lit(seed).alias("seed"), pl.all())
            )
            weights[f"parameters, {task}, seed {seed} (sha256)"] = result.provenance["model"][
                "sha256"
            ]
    table = pl.concat(tables)
    right = pl.col("predicted") == pl.col("label")
    accuracy = table.group_by("task", "seed", maintain_order=True).agg(
        accuracy=right.mean(), texts=pl.col("text").n_unique()
    )
    results, charts = {"rationales": table, "accuracy": accuracy}, {}
    findings = [f"Accuracy on the texts that were tested:\n\n{markdown_table(accuracy)}"]
    for measure, better in MEASURES.items():
        against = f"{measure}_against_random"
        results[measure] = means(table, ["task", "explanation"], measure)
        results[against] = differences(table, ["task"], measure, "random")
        findings += [
            f"{measure.capitalize()} ({better} is better), mean over texts and seeds, 95 % interval over texts:\n\n"
            f"{markdown_table(results[measure])}",
            f"{measure.capitalize()}, difference to random tokens of the same texts:\n\n"
            f"{markdown_table(results[against])}",
        ]
        charts[against] = against_random(results[against], measure)
    used = {**settings.recorded(), **weights}
    return Reproduction(used, results, "\n\n".join(findings), charts, settings.seed)


FIGURES = {
    "deyoung2020": Figure(
        "DeYoung et al. 2020, section 4.2", RepeatedSettings, deyoung2020, "texts"
    )
}
