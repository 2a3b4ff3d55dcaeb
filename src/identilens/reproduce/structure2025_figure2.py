"""structure2025, Figure 2: what the threshold l makes of the structure W of 100 inputs."""

import polars as pl

from identilens.report.reversal_figures import best_head, threshold_sheet
from identilens.reproduce.record import Reproduction
from identilens.reproduce.structure2025_reversal import (
    PUBLISHED_THRESHOLD,
    Progress,
    accuracy_table,
    recorded,
    studies,
)
from identilens.results.stored import markdown_table
from identilens.studies.reversal.study import ReversalStudy
from identilens.studies.reversal.task import best_range
from identilens.studies.reversal.training import ReversalSettings
from identilens.studies.structure.norm_study import by_perturbation, norm_correlations

NAME = "structure2025-figure2"
SHOWN = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


def structure2025_figure2(settings: ReversalSettings, progress: Progress | None = None) -> Reproduction:
    """Return Figure 2: both models trained, and their W at every threshold."""
    found = studies(settings, progress)
    accuracy = accuracy_table(found)
    best = pl.concat([best_table(study) for study in found])
    sweep = pl.concat([study.sweep.select(pl.lit(study.model).alias("model"), pl.all()) for study in found])
    norms, kinds = norm_correlations(found[1].perturbations), by_perturbation(found[1].perturbations)
    findings = (
        f"W of {settings.inputs} test inputs (h = 0). The draft calls l = {PUBLISHED_THRESHOLD} a good approximation "
        "of the best threshold. Score: cosine of W and the antidiagonal, 1 only where they are equal. `first` and "
        "`last` bound the thresholds that reach the best score; `at_draft` is the score at the draft's l. The draft "
        "cuts the sum of the weights; its l may be meant on the sum or on the mean, so both are given. The best head "
        f"of each model is shown in the figure.\n\n{markdown_table(best)}\n\n{markdown_table(accuracy)}\n\n"
        "Perturbed cross attention put back into the transformer, W at the draft's l: correlations of norms with the "
        f"change of the final hidden state, and that change by kind of perturbation (one Frobenius norm a size).\n\n"
        f"{markdown_table(norms)}\n\n{markdown_table(kinds, 4)}\n"
    )
    return Reproduction(
        NAME, "structure2025, Figure 2", recorded(settings),
        {"best": best, "sweep": sweep, "accuracy": accuracy, "norms": norms, "perturbations": kinds},
        findings, {"thresholds": lambda: threshold_sheet(found, SHOWN, PUBLISHED_THRESHOLD)}, settings.seed,
    )  # fmt: skip


def best_table(study: ReversalStudy) -> pl.DataFrame:
    """Return the best threshold of every head, raw and effective, on the mean and on the sum."""
    rows = []
    for head in range(len(study.weights)):
        for weights in ("raw", "effective"):
            for scale in ("mean", "sum"):
                sweep = study.head_sweep(head, scale, weights)
                score, first, last = best_range(sweep)
                draft = sweep.filter((pl.col("threshold") - PUBLISHED_THRESHOLD).abs() < 1e-9)
                uncut = float(sweep["score"][0])
                shown = head == best_head(study)
                rows.append(
                    (study.model, head, shown, weights, scale, score, first, last, draft["score"][0],
                     draft["support"][0], uncut)
                )  # fmt: skip
    schema = ["model", "head", "best_head", "weights", "scale", "best_score", "first", "last", "at_draft",
              "support_at_draft", "uncut"]  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")
