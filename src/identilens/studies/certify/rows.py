"""Certificates of single rows: each weight's interval, influence and verdict, and the order of keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import HeadValues, head_values
from identilens.measures.attention.influence import contribution_weights, norm_share, removal_effect
from identilens.measures.attention.intervals import (
    PIN_TOLERANCE,
    certify_row,
    minimum_norm_alternative,
)
from identilens.runs.tables import HEAD, Columns, table_of

WITHIN = 0.5
"""A weight is determined if every alternative keeps it within this share of its value: a/2 to 3a/2.

If one determined weight is three times another, their order is the same in every alternative.
"""

EVEN = 1.0
"""A key is influential if its norm share reaches this multiple of an even share, 1 / visible keys.

If all keys added vectors of equal length, each would have an even share.
"""

FLOOR = 0.5
"""A weight is negligible if its key is not influential and no alternative lifts it to this many even shares.

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

ROW: Columns = {**HEAD, "query": pl.Int64, "query_token": pl.String}
"""The columns that name a row of attention."""

SCHEMA: Mapping[str, Columns] = {
    "table": {
        **ROW,
        "key": pl.Int64,
        "token": pl.String,
        "weight": pl.Float64,
        "lo": pl.Float64,
        "hi": pl.Float64,
        "pinned": pl.Boolean,
        "effective": pl.Float64,
        "minimum_norm": pl.Float64,
        "norm_share": pl.Float64,
        "contribution": pl.Float64,
        "removal": pl.Float64,
        "verdict": pl.String,
    },
    "rows": {
        **ROW,
        "simplex_nullity": pl.Int64,
        "certified_top": pl.Int64,
        "certified_pairs": pl.Int64,
        "pairs": pl.Int64,
        "gap": pl.Float64,
    },
    "order": {**HEAD, "query": pl.Int64, "above": pl.Int64, "below": pl.Int64},
}
"""The tables of a certificate: one row for each weight, for each row of attention, for each pair of keys."""


@dataclass(frozen=True)
class RowCertificates:
    """Certificates of rows of one head: the rows of the tables in `SCHEMA`."""

    tables: dict[str, list[dict[str, Any]]]

    @classmethod
    def empty(cls) -> "RowCertificates":
        """Return no certificates."""
        return cls({name: [] for name in SCHEMA})

    def add(
        self, at: Mapping[str, Any], columns: "CertifiedColumns", tokens: Sequence[str]
    ) -> None:
        """Add one row of attention; ``at`` has its `ROW` columns, ``tokens`` are those of all keys."""
        for values in zip(*columns.keys.values(), strict=True):
            key = dict(zip(columns.keys, values, strict=True))
            self.tables["table"].append({**at, "token": tokens[key["key"]], **key})
        self.tables["rows"].append({**at, **columns.row})
        place = {name: at[name] for name in (*HEAD, "query")}
        self.tables["order"] += [
            {**place, "above": above, "below": below} for above, below in columns.order
        ]

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the tables."""
        return {name: table_of(columns, self.tables[name]) for name, columns in SCHEMA.items()}


@dataclass(frozen=True)
class CertifiedColumns:
    """What is certain of one row.

    Attributes:
        keys: By column of the table, a value for each visible key.
        row: Columns of the row as a whole.
        order: Pairs of keys, the first of which has the larger weight in every alternative.
    """

    keys: dict[str, list[Any]]
    row: dict[str, Any]
    order: list[list[int]]


def certified_columns(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    visible: Bool[Tensor, " key"] | None = None,
    *,
    pin_tolerance: float = PIN_TOLERANCE,
    order: bool = False,
) -> CertifiedColumns:
    """Return the certificate of one row, in columns.

    ``lo`` and ``hi`` are the ends of `attention_intervals`; for ``norm_share`` and ``contribution`` see the measures;
    ``removal`` is the change of the output when the key is removed, as a share of the output's length, missing where
    nothing else has weight or the output is zero. The verdict calls a weight determined by its interval alone. Pairs of
    keys are certified only with ``order``.

    Raises:
        InputError: Weights that are not a distribution over T's rows.
        NumericalError: A program whose answer cannot be certified.
    """
    T = head_values(projected_values)
    certificate = certify_row(
        weights_row, T, visible=visible, pin_tolerance=pin_tolerance, order=order
    )
    bounds = certificate.intervals
    seen = torch.arange(T.keys) if visible is None else torch.nonzero(visible).flatten()
    row, mask = bounds.weights[None], None if visible is None else visible[None]
    columns = {
        "weight": bounds.weights,
        "lo": bounds.lo,
        "hi": bounds.hi,
        "pinned": bounds.pinned,
        "effective": T.effective(row, mask)[0],
        "minimum_norm": minimum_norm_alternative(weights_row, T, visible=visible).point,
        "norm_share": norm_share(row, T)[0],
        "contribution": contribution_weights(row, T)[0],
        "removal": removal_effect(row, T, relative=True)[0],
    }
    keys = {"key": seen.tolist()} | {
        name: column[seen].tolist() for name, column in columns.items()
    }
    finite = columns["removal"][seen].isfinite().tolist()
    keys["removal"] = [
        value if known else None for value, known in zip(keys["removal"], finite, strict=True)
    ]
    keys["verdict"] = _verdicts(
        *(columns[name][seen] for name in ("weight", "lo", "hi", "norm_share"))
    )
    pairs = None if certificate.above is None else torch.nonzero(certificate.above).tolist()
    whole = {
        "simplex_nullity": bounds.nullity,
        "certified_top": certificate.top,
        "certified_pairs": None if pairs is None else len(pairs),
        "pairs": len(seen) * (len(seen) - 1) // 2,
        "gap": bounds.gap,
    }
    return CertifiedColumns(keys, whole, pairs or [])


def _verdicts(weight: Tensor, lo: Tensor, hi: Tensor, share: Tensor) -> list[str]:
    even = 1 / len(weight)
    free = (lo < (1 - WITHIN) * weight) | (hi > (1 + WITHIN) * weight)
    # Equal parts are all influential, however they round.
    little = share < EVEN * even * (1 - 1e-9)
    negligible = little & (hi < FLOOR * even)
    verdict = torch.where(negligible, len(VERDICTS) - 1, 2 * free.long() + little.long())
    return [VERDICTS[number] for number in verdict.tolist()]
