"""structure2025: Figures 1 and 2, attention of models that reverse a sequence of 20 tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from identilens.lab.reversal.result import Reversal
from identilens.lab.reversal.settings import RATES, TaskSettings
from identilens.lab.reversal.study import train_reversal
from identilens.lab.reversal.task import DRAFT_THRESHOLD, antidiagonal_match, best_range
from identilens.reproduce.record import Reproduction
from identilens.runs.tables import Tables, markdown_table
from identilens.studies.structure.perturbation_views import by_perturbation, norm_correlations

Report = Callable[[list[Reversal], pl.DataFrame], tuple[Tables, str]]
"""Returns tables and findings of a figure."""
DRAFT = {"model": "draft: LSTM", "epochs": 150, "test_accuracy": 0.99}
"""Accuracy in the draft, section V."""


def reproduction(
    report: Report, drawn: Sequence[str], settings: TaskSettings, out: Path, **run: Any
) -> Reproduction:
    """Train the draft's LSTM encoder–decoder and a small transformer on the same sequences, and report on both.

    The runs are in ``out/lstm`` and ``out/transformer``, and are not repeated with ``resume``.
    """
    runs = [
        train_reversal(model=model, **vars(settings), out=out / model, **run) for model in RATES
    ]
    names = {"accuracy": "test_accuracy", "whole": "whole_sequences", "written": "written_alone"}
    measured = pl.concat([result.table for result in runs]).rename(names)
    accuracy = pl.concat([pl.DataFrame([DRAFT], measured.schema), measured])
    tables, findings = report(runs, accuracy)
    used, charts = settings.recorded(), {}
    for result in runs:
        rate = result.provenance["settings"]["learning_rate"]
        used[f"learning_rate of the {result.model}"] = rate
        every = result.charts()
        charts |= {f"{name}_{result.model}": every[name] for name in drawn}
    return Reproduction(used, {"accuracy": accuracy, **tables}, findings, charts)


def attention_of_an_input(runs: list[Reversal], accuracy: pl.DataFrame) -> tuple[Tables, str]:
    """Return the cross attention of both models on the first test input, beside the antidiagonal."""
    matches = []
    for result in runs:
        shared = pl.lit(result.model).alias("model")
        rows = pl.DataFrame([antidiagonal_match(weights[0]) for weights in result.weights])
        match = pl.concat([result.heads, rows], how="horizontal")
        matches.append(match.select(shared, "head", "mass", "score", "shift", "nullity"))
    match = pl.concat(matches)
    findings = (
        "Accuracy on the test set (tokens, given the right previous tokens), and the draft's:\n\n"
        f"{markdown_table(accuracy)}\n\nThe first test input's attention and the antidiagonal (mass: mean weight "
        "of a row on it; score: cosine; shift: offset of the antidiagonal with most mass; nullity: n − rank(T), mean "
        f"over inputs):\n\n{markdown_table(match)}\n"
    )
    return {"match": match}, findings


def structure_by_threshold(runs: list[Reversal], accuracy: pl.DataFrame) -> tuple[Tables, str]:
    """Return W of both models at every threshold l, and the effect of perturbed attention on the transformer."""
    sweep = pl.concat(
        [result.sweep.select(pl.lit(result.model).alias("model"), pl.all()) for result in runs]
    )
    best = pl.concat([best_table(result) for result in runs])
    norms, kinds = norm_correlations(runs[1].perturbations), by_perturbation(runs[1].perturbations)
    findings = (
        f"W of {runs[0].weights.shape[1]} test inputs (h = 0). The draft calls l = {DRAFT_THRESHOLD} a good "
        "approximation of the best threshold. Score: cosine of W and the antidiagonal, 1 only where they are equal. "
        "`first` and `last` bound the thresholds that reach the best score; `at_draft` is the score at the draft's l. "
        "The draft cuts the sum of the weights; its l may be meant on the sum or on the mean, so both are given. The "
        f"best head of each model is shown in the figure.\n\n{markdown_table(best)}\n\n{markdown_table(accuracy)}\n\n"
        "Perturbed cross attention put back into the transformer, W at the draft's l: correlations of norms with the "
        f"change of the final hidden state, and this change by kind of perturbation and Frobenius norm.\n\n"
        f"{markdown_table(norms)}\n\n{markdown_table(kinds, 4)}\n"
    )
    return {"best": best, "sweep": sweep, "norms": norms, "perturbations": kinds}, findings


def best_table(result: Reversal) -> pl.DataFrame:
    """Return the best threshold of every head, raw and effective, on the mean and on the sum."""
    rows = []
    for (head, weights, scale), sweep in result.sweep.group_by(
        "head", "weights", "scale", maintain_order=True
    ):
        score, first, last = best_range(sweep)
        draft = sweep.filter(threshold=DRAFT_THRESHOLD).row(0, named=True)
        rows.append(
            {
                "model": result.model,
                "head": head,
                "best_head": head == result.best_head(),
                "weights": weights,
                "scale": scale,
                "best_score": score,
                "first": first,
                "last": last,
                "at_draft": draft["score"],
                "support_at_draft": draft["support"],
                "uncut": sweep["score"][0],
            }
        )
    return pl.DataFrame(rows)


FIGURES = {
    "structure2025-figure1": partial(reproduction, attention_of_an_input, ["attention"]),
    "structure2025-figure2": partial(
        reproduction, structure_by_threshold, ["structures", "thresholds"]
    ),
}
