"""The reversal task (structure2025, V): how well a structure matches the antidiagonal."""

from collections.abc import Sequence
from typing import Literal

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.structure.weights import structure_weights
from identilens.runs.tables import Columns, Row, decimals, integers, table_of

THRESHOLDS = tuple(round(0.02 * step, 2) for step in range(51))
"""l on the mean weight: 0 to 1 in steps of 0.02."""

DRAFT_THRESHOLD = 0.4
"""l that the draft calls a good approximation of the best one (structure2025, V)."""

SWEEP: Columns = {
    "scale": pl.String,
    **decimals("threshold", "score", "support", "mass"),
    **integers("empty_rows", "shift", "kept"),
}
"""Columns of a threshold sweep."""


def antidiagonal_match(structure: Float[Tensor, "n n"]) -> Row:
    """Return the match of a structure W, with rows that sum to 1 or 0, and the antidiagonal J, which reverses.

    ``score``: cosine of W and J as vectors, in [0, 1], 1 only where W = J. ``support``: F₁ of where W is positive
    against where J is, in [0, 1]. ``mass``: mean weight of rows on the antidiagonal, in [0, 1]. ``empty_rows``: rows of
    W with nothing left. ``shift``: offset of the antidiagonal with most mass; 0 is the antidiagonal itself.
    """
    n, W = len(structure), structure.double()
    mirrored, kept = W.flip(-1), W > 0
    mass, size = float(mirrored.diagonal().sum()), float(torch.linalg.matrix_norm(W))
    hits = float(kept.flip(-1).diagonal().sum())
    # A diagonal of the mirrored matrix s to the right contains keys s before the antidiagonal's.
    shifts = {
        -shift: float(mirrored.diagonal(shift).mean()) for shift in range(-n // 2, n // 2 + 1)
    }
    return {
        "score": mass / (size * n**0.5) if size else 0.0,
        "support": 2 * hits / (float(kept.sum()) + n),
        "mass": mass / n,
        "empty_rows": int((~kept.any(-1)).sum()),
        "shift": max(shifts, key=lambda shift: (shifts[shift], -abs(shift))),
    }


def threshold_sweep(
    weights: Float[Tensor, "text n n"],
    thresholds: Sequence[float] = THRESHOLDS,
    *,
    scale: Literal["mean", "sum"] = "mean",
) -> pl.DataFrame:
    """Return the match of W = Norm(Cut_l(Ã)) and the antidiagonal at each threshold (structure2025, Fig. 2).

    The threshold l is in units of the mean or of the sum of the weights A_i. Columns: `SWEEP`, with ``kept`` the
    entries above 0.
    """
    mean = weights.double().mean(0)
    rows = []
    for threshold in thresholds:
        W = structure_weights(mean, threshold / len(weights) if scale == "sum" else threshold)
        match = antidiagonal_match(W)
        rows.append({"scale": scale, "threshold": threshold, **match, "kept": int((W > 0).sum())})
    return table_of(SWEEP, rows)


def best_range(sweep: pl.DataFrame) -> tuple[float, float, float]:
    """Return the best score of a sweep, with the first and last threshold of the run that holds it.

    Scores within 0.001 of the best count as it; the sweep has one scale, and thresholds in rising order.
    """
    score = pl.col("score")
    run = (score >= score.max() - 1e-3).rle_id()
    thresholds = sweep.filter(run == run.get(score.arg_max()))["threshold"]
    return sweep["score"].max(), thresholds[0], thresholds[-1]  # pyright: ignore[reportReturnType] columns of floats
