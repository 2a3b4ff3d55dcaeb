"""What can be said of each weight of one row: whether it is determined, whether it is influential, and in words."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import HeadValues, head_values
from identilens.measures.attention.influence import contribution_weights, norm_share, removal_effect
from identilens.measures.attention.intervals import attention_intervals
from identilens.runs.tables import Columns

WITHIN = 0.5
"""A weight is determined when every alternative keeps it within this share of what is seen: a/2 to 3a/2.

Of two determined weights one of which is three times the other, no alternative turns the order around.
"""

EVEN = 1.0
"""A key is influential when its norm share reaches so many times an even share, 1 / visible keys.

Were all keys to add parts of one length, each would have an even share: this one adds at least its turn.
"""

FLOOR = 0.5
"""A weight is negligible when its key is not influential and no alternative lifts it to so many even shares.

Half of what even attention would give: such a weight says nothing that a reader should look at. A small weight that
an alternative could raise above it is free, not negligible.
"""

VERDICTS = (
    "determined, influential",
    "determined, little influence",
    "free, influential",
    "free, little influence",
    "negligible",
)

COLUMNS: Columns = {
    "key": pl.Int64, "weight": pl.Float64, "lo": pl.Float64, "hi": pl.Float64, "norm_share": pl.Float64,
    "contribution": pl.Float64, "removal": pl.Float64, "verdict": pl.String,
}  # fmt: skip
"""What `trust_rows` gives for each visible key."""


def trust_rows(
    weights_row: Float[Tensor, " key"], projected_values: HeadValues, visible: Bool[Tensor, " key"] | None = None
) -> dict[str, list[Any]]:
    """Return the columns of a row's visible keys: weight, interval, influence and verdict.

    ``lo`` and ``hi`` are the ends of `attention_intervals`; for ``norm_share`` and ``contribution`` see the measures;
    ``removal`` is the change of the output when the key is removed, as a share of the output's length, missing where
    nothing else has weight or the output is zero. The verdict calls a weight determined by its interval alone.

    Raises:
        InputError: Weights that are not a distribution over T's rows.
        NumericalError: A program whose answer cannot be certified.
    """
    T = head_values(projected_values)
    bounds = attention_intervals(weights_row, T, visible=visible)
    seen = torch.arange(T.keys) if visible is None else torch.nonzero(visible).flatten()
    row = bounds.weights[None]
    removal = removal_effect(row, T, relative=True)[0, seen]
    columns = {
        "weight": bounds.weights[seen], "lo": bounds.lo[seen], "hi": bounds.hi[seen],
        "norm_share": norm_share(row, T)[0, seen], "contribution": contribution_weights(row, T)[0, seen],
    }  # fmt: skip
    words = _verdicts(columns["weight"], columns["lo"], columns["hi"], columns["norm_share"])
    return {
        "key": seen.tolist(),
        **{name: column.tolist() for name, column in columns.items()},
        "removal": [
            value if finite else None for value, finite in zip(removal.tolist(), removal.isfinite(), strict=True)
        ],
        "verdict": words,
    }


def named_rows(
    at: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], tokens: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the rows of the table from the columns of `trust_rows`; ``at`` names the query, ``tokens`` the keys."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{**at, "token": tokens[row["key"]], **row} for row in rows]


def _verdicts(weight: Tensor, lo: Tensor, hi: Tensor, share: Tensor) -> list[str]:
    even = 1 / len(weight)
    free = (lo < (1 - WITHIN) * weight) | (hi > (1 + WITHIN) * weight)
    # Equal parts are all influential, however they round.
    little = share < EVEN * even * (1 - 1e-9)
    negligible = little & (hi < FLOOR * even)
    place = torch.where(negligible, len(VERDICTS) - 1, 2 * free.long() + little.long())
    return [VERDICTS[at] for at in place.tolist()]
