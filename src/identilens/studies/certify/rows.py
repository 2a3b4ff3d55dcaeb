"""Certificates of rows: value, proven ends and verdict of each functional."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import ProjectedValues
from identilens.linalg.certificate import Certificate
from identilens.measures.attention.influence import contribution_weights, norm_share, removal_effect
from identilens.measures.attention.row_solver import (
    NUMBERS,
    Ends,
    RowSolver,
)
from identilens.models.token_names import unmarked
from identilens.runs.tables import Columns, Row, decimals, integers
from identilens.studies.certify.functionals import ROW, Functionals, certified
from identilens.studies.outcomes import WITHIN, KeptOutcome

EVEN = 1.0
"""A key has a large share of the output if its norm share reaches this multiple of an even one, 1 / visible keys.

If all keys added vectors of equal length, each would have an even share.
"""

FLOOR = 0.5
"""A weight is negligible if its key has a small share and no alternative lifts it to this many even shares.

Half of what even attention would give: such a weight says nothing that a reader should look at. A small weight that
an alternative could raise above it is not determined, and not negligible.
"""

VERDICTS = (
    "determined, large share",
    "determined, small share",
    "not determined, large share",
    "not determined, small share",
    "negligible",
)

SCHEMA: Mapping[str, Columns] = {
    "table": {
        **ROW,
        "outcome": pl.String,
        "functional": pl.String,
        "key": pl.Int64,
        "token": pl.String,
        **decimals("value", "lo", "hi", "radius"),
        "verdict": pl.String,
        "certificate": pl.String,
        **decimals("effective", "norm_share", "contribution", "removal"),
    },
    "rows": {
        **ROW,
        "outcome": pl.String,
        "answer": pl.String,
        **decimals("allowed", "effect", "cast", "farthest", "predicted", "measured"),
        **integers("simplex_nullity", "certified_top"),
        "gap": pl.Float64,
    },
}
"""The tables of a certificate: one row for each functional, and for each row of attention.

The functionals of a row are the weight of each key that it sees, then claims, patterns, segments and sources. ``key``
is that of a weight; ``token`` is what stands there, and what counts in other functionals. Columns after ``certificate``
are of weights. ``radius`` is the largest change of the outcome up to which the verdict determined or negligible, or
that on a claim, is proven (infinite if by the signs and the sum of the weights alone); ``allowed`` the one that the
tolerance allows; ``effect`` the one without the head's row (states and prediction; ``answer`` says at which positions
they count); ``cast`` the one that single precision makes by itself, in which the first order of a model in half
precision is found. ``farthest`` is the total variation distance of the farthest alternative met; ``predicted`` and
``measured`` are the changes that it makes, by the first order and put into the model.
"""


@dataclass(frozen=True)
class CertifiedRow:
    """What is certain of one row of attention.

    Attributes:
        functionals: Their columns: of the weight of each visible key, then of each claim.
        row: Columns of the row as a whole.
        certificates: What proves the ends of each claim, where it was asked for.
        radii: `row_radii` of the keys.
    """

    functionals: list[Row]
    row: Row
    certificates: Sequence[Certificate | None]
    radii: Float[Tensor, "two own"]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The columns of the functionals."""
        return pl.DataFrame(self.functionals).to_dict(as_series=False)

    def tables(self, at: Row) -> dict[str, list[Row]]:
        """Return the rows of the tables; ``at`` has the row's place, and what its certificate does not know."""
        tables = {"table": self.functionals, "rows": [self.row]}
        return {name: [{**at, **one} for one in rows] for name, rows in tables.items()}


def frames_of(rows: Iterable[Mapping[str, list[Row]]]) -> dict[str, pl.DataFrame]:
    """Return the tables with all of these rows; a column that a row leaves out is null."""
    rows = list(rows)
    return {
        name: pl.DataFrame(
            [row for one in rows for row in one.get(name, ())], schema=pl.Schema(columns)
        )
        for name, columns in SCHEMA.items()
    }


def certified_row(
    kept: KeptOutcome,
    tokens: Sequence[str],
    allowed: float = 0.0,
    claims: Functionals | None = None,
    *,
    radii: Float[Tensor, "two own"] | None = None,
    certificates: bool = False,
) -> CertifiedRow:
    """Return what is certain of one row, for all alternatives that change the outcome by at most so much.

    ``lo`` and ``hi`` are the proven ends of each functional; for ``norm_share`` and ``contribution`` see the measures;
    ``removal`` is the change of what the head adds when the key is removed, as a share of its length, missing where
    nothing else has weight or nothing is added. All of them are in units of the outcome. The verdict calls a weight
    determined by its interval alone. ``radii`` are those found for a smaller change, where there are any. ``claims``
    come with the coefficient of each key, and ``tokens`` are what stands at each key.

    Raises:
        NumericalError: A program whose answer cannot be certified.
    """
    solver = kept.solver(allowed)
    ends = solver.ends()
    own = kept.own[solver.keys]
    keys = solver.keys[own] % kept.values.keys
    row = solver.inside.new_zeros(kept.values.keys)
    visible = torch.zeros_like(row, dtype=torch.bool).index_fill(0, keys, True)
    met = solver.farthest(ends)
    row, farthest = (row.scatter(0, keys, one[own]) for one in (solver.inside, met))
    radii = row_radii(kept, solver, ends) if radii is None else radii
    functionals = _weights(kept.values, row, visible, ends.lo[own], ends.hi[own], radii)
    for one in functionals:
        one["token"] = tokens[one["key"]]
    claims = claims or {}
    proven = certified(kept, solver, claims, certificates=certificates)
    named = [f"key {key} {unmarked(tokens[key])!r}" for key in map(int, keys)]
    for (one, _), coefficients in zip(proven, claims.values(), strict=True):
        times = zip(coefficients[keys.cpu()].tolist(), named, strict=True)
        one["token"] = ", ".join(
            name if factor == 1 else f"{factor:.4g} times {name}"
            for factor, name in times
            if factor
        )
    top = solver.top(ends)
    whole = {
        "allowed": allowed,
        "effect": kept.effect,
        "cast": kept.answer and kept.answer.cast,
        "farthest": float((row - farthest).clamp_min(0.0).sum()),
        "predicted": float(kept.change(solver.length(met))),
        "measured": kept.measured(farthest),
        "simplex_nullity": kept.values.simplex_space(visible).nullity,
        "certified_top": None if top is None else top % len(row),
        "gap": ends.gap,
    }
    functionals += [one for one, _ in proven]
    held = [certificate for _, certificate in proven]
    return CertifiedRow(functionals, whole, held, radii)


def _weights(
    T: ProjectedValues,
    row: Float[Tensor, " key"],
    visible: Bool[Tensor, " key"],
    lo: Float[Tensor, " seen"],
    hi: Float[Tensor, " seen"],
    radii: Float[Tensor, "two radius"],
) -> list[Row]:
    """Return the columns of each visible key's weight, given its ends."""
    columns = {
        "key": visible.nonzero()[:, 0],
        "value": row[visible],
        "lo": lo,
        "hi": hi,
        "effective": T.effective(row[None], visible[None])[0][visible],
        "norm_share": norm_share(row[None], T)[0][visible],
        "contribution": contribution_weights(row[None], T)[0][visible],
        "removal": removal_effect(row[None], T, relative=True)[0][visible],
    }
    value, even, last = columns["value"], 1 / len(lo), len(VERDICTS) - 1
    free = (lo < (1 - WITHIN) * value) | (hi > (1 + WITHIN) * value)
    # Equal parts are all large, however they round.
    small = columns["norm_share"] < EVEN * even * (1 - 1e-9)
    verdict = (2 * free.long() + small.long()).masked_fill(small & (hi < FLOOR * even), last)
    determined, negligible = radii
    columns["radius"] = determined.where(verdict < 2, negligible.where(verdict == last, torch.nan))
    listed = {name: column.tolist() for name, column in columns.items()}
    for name in ("removal", "radius"):
        listed[name] = [number if isfinite(number) else None for number in listed[name]]
    listed["verdict"] = [VERDICTS[number] for number in verdict.tolist()]
    listed["functional"] = [f"key {key}" for key in listed["key"]]
    return [dict(zip(listed, one, strict=True)) for one in zip(*listed.values(), strict=True)]


def row_radii(kept: KeptOutcome, solver: RowSolver, ends: Ends) -> Float[Tensor, "two own"]:
    """Return the changes of the outcome up to which each weight is proven to stay determined, and negligible.

    NaN where it is not even with the allowed change, whose ends are given: also of any larger.
    """
    own = kept.own[solver.keys]
    weight, lo, hi = (one[own] for one in (solver.inside, ends.lo, ends.hi))
    even = torch.full_like(weight, -FLOOR / len(weight))
    limits = torch.stack([(1 - WITHIN) * weight, -(1 + WITHIN) * weight, even])
    held = torch.stack([lo, -hi, -hi]) >= limits
    held[:2] &= held[:2].all(0)
    found = torch.full_like(limits, torch.nan)
    for part in held.nonzero().split(max(1, NUMBERS // len(own))):
        which, key = part.T
        costs = solver.units(own.nonzero()[key, 0])
        costs[which > 0] *= -1.0
        found[which, key] = solver.radius(costs, limits[which, key])
    lower, upper, negligible = found
    return kept.change(torch.stack([torch.minimum(lower, upper), negligible]))
