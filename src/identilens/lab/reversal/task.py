"""The reversal task (structure2025, V): settings, data, and how well a structure matches the antidiagonal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import polars as pl
import torch
from annotated_types import Ge, Gt
from jaxtyping import Float
from torch import Tensor

from identilens.errors import SettingError
from identilens.measures.structure.weights import Scale, structure_weights
from identilens.runs.settings import NonNegative, Positive, Settings, TwoOrMore
from identilens.runs.tables import Columns, Row, decimals, integers, table_of

Reverser = Literal["lstm", "transformer"]
TRANSFORMER_HEADS = 4
RATES: dict[Reverser, float] = {"lstm": 3e-3, "transformer": 1e-3}
"""Default learning rate of each model."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings(Settings):
    """The settings that the draft gives (length, epochs, accuracy), and those that it does not give.

    Attributes:
        length: Number of tokens in a sequence (structure2025, Fig. 1).
        vocabulary: Number of different tokens.
        hidden: Size of the LSTMs, or d_model of the transformer.
        train: Number of training sequences.
        held_out: Number of validation sequences; the test has as many.
        batch_size: Number of sequences in a training step.
        learning_rate: Learning rate of Adam; 3e-3 for the LSTM and 1e-3 for the transformer by default.
        epochs: Largest number of epochs (the draft has 150).
        accuracy: Training stops at this share of correct tokens on validation.
        inputs: Number of test inputs whose attention gives W (the draft has 100).
        seed: Seed of data, initial weights and batches.
    """

    length: TwoOrMore = 20
    vocabulary: TwoOrMore = 10
    hidden: Positive = 64
    train: Positive = 10_000
    held_out: Positive = 1000
    batch_size: Positive = 64
    learning_rate: Annotated[float | None, Gt(0)] = None
    epochs: Positive = 150
    accuracy: Annotated[float, Ge(0)] = 0.995
    inputs: Positive = 100
    seed: NonNegative = 0

    def check(self) -> None:
        """Check that the test has enough inputs for W."""
        if self.inputs > self.held_out:
            raise SettingError(
                "inputs", f"of at most held_out = {self.held_out} test sequences", self.inputs
            )


@dataclass(frozen=True, kw_only=True)
class ReversalSettings(TaskSettings):
    """The model that learns the task.

    Attributes:
        model: LSTM encoder and decoder as in the draft, or a transformer with one encoder and one decoder layer.
    """

    model: Reverser = "lstm"

    @property
    def rate(self) -> float:
        """Learning rate of the model."""
        return RATES[self.model] if self.learning_rate is None else self.learning_rate

    def check(self) -> None:
        """Check that the transformer's heads have one size."""
        super().check()
        if self.model == "transformer" and self.hidden % TRANSFORMER_HEADS:
            raise SettingError(
                "hidden",
                f"as a multiple of the transformer's {TRANSFORMER_HEADS} heads",
                self.hidden,
            )


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
    scale: Scale = "mean",
) -> pl.DataFrame:
    """Return the match of W = Norm(Cut_l(Ã)) and the antidiagonal at each threshold (structure2025, Fig. 2).

    The threshold l is in units of the mean or of the sum of the weights A_i. Columns: `SWEEP`, with ``kept`` the
    entries above 0.
    """
    mean = weights.double().mean(0)
    rows = []
    for threshold in thresholds:
        W = structure_weights(mean, threshold, texts=len(weights), scale=scale)
        match = antidiagonal_match(W)
        rows.append({"scale": scale, "threshold": threshold, **match, "kept": int((W > 0).sum())})
    return table_of(SWEEP, rows)


def best_range(sweep: pl.DataFrame) -> tuple[float, float, float]:
    """Return the best score of a sweep, with the first and last threshold of the run that holds it.

    Scores within 0.001 of the best count as it; the sweep has one scale, and thresholds in rising order.
    """
    score, place = pl.col("score"), pl.col("score").arg_max()
    run = (score >= score.max() - 1e-3).rle_id()
    thresholds = sweep.filter(run == run.get(place))["threshold"]
    return sweep["score"].max(), thresholds[0], thresholds[-1]  # pyright: ignore[reportReturnType] columns of floats
