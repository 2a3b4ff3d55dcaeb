"""structure2025, Figure 2: the structure W of 100 inputs by threshold l."""

from pathlib import Path
from typing import Any

import polars as pl

from identilens.lab.reversal.result import Reversal
from identilens.lab.reversal.settings import TaskSettings
from identilens.lab.reversal.task import DRAFT_THRESHOLD, best_range
from identilens.lab.reversal.views import structures, thresholds
from identilens.reproduce.record import Recipe, Reproduction
from identilens.reproduce.structure2025_reversal import accuracy_table, recorded, trained
from identilens.runs.tables import markdown_table
from identilens.studies.perturbation_views import by_perturbation, norm_correlations


def structure2025_figure2(settings: TaskSettings, out: Path | None = None, **run: Any) -> Reproduction:
    """Reproduce Figure 2: train both models, and show their W at every threshold."""
    runs = trained(settings, out, **run)
    accuracy = accuracy_table(runs)
    best = pl.concat([best_table(one) for one in runs])
    sweep = pl.concat([one.sweep.select(pl.lit(one.model).alias("model"), pl.all()) for one in runs])
    norms, kinds = norm_correlations(runs[1].perturbations), by_perturbation(runs[1].perturbations)
    findings = (
        f"W of {settings.inputs} test inputs (h = 0). The draft calls l = {DRAFT_THRESHOLD} a good approximation "
        "of the best threshold. Score: cosine of W and the antidiagonal, 1 only where they are equal. `first` and "
        "`last` bound the thresholds that reach the best score; `at_draft` is the score at the draft's l. The draft "
        "cuts the sum of the weights; its l may be meant on the sum or on the mean, so both are given. The best head "
        f"of each model is shown in the figure.\n\n{markdown_table(best)}\n\n{markdown_table(accuracy)}\n\n"
        "Perturbed cross attention put back into the transformer, W at the draft's l: correlations of norms with the "
        f"change of the final hidden state, and this change by kind of perturbation and Frobenius norm.\n\n"
        f"{markdown_table(norms)}\n\n{markdown_table(kinds, 4)}\n"
    )
    means = {name: mean for one in runs for name, mean in one.best_mean().items()}
    charts = {"structures": structures(means), "thresholds": thresholds(pl.concat([one.best_sweep() for one in runs]))}
    return Reproduction(
        "structure2025-figure2", "structure2025, Figure 2", recorded(settings),
        {"best": best, "sweep": sweep, "accuracy": accuracy, "norms": norms, "perturbations": kinds},
        findings, charts, settings.seed,
    )  # fmt: skip


def best_table(one: Reversal) -> pl.DataFrame:
    """Return the best threshold of every head, raw and effective, on the mean and on the sum."""
    rows = []
    for (head, weights, scale), sweep in one.sweep.group_by("head", "weights", "scale", maintain_order=True):
        score, first, last = best_range(sweep)
        draft = sweep.filter((pl.col("threshold") - DRAFT_THRESHOLD).abs() < 1e-9).row(0, named=True)
        rows.append(
            {
                "model": one.model, "head": head, "best_head": head == one.best_head(),
                "weights": weights, "scale": scale, "best_score": score, "first": first, "last": last,
                "at_draft": draft["score"], "support_at_draft": draft["support"], "uncut": sweep["score"][0],
            }
        )  # fmt: skip
    return pl.DataFrame(rows)


RECIPE = Recipe(TaskSettings, structure2025_figure2, "models")
