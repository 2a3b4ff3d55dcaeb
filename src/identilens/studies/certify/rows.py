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
from identilens.linalg.memory import blocks
from identilens.measures.attention.influence import contribution_weights, norm_share, removal_effect
from identilens.measures.attention.row_programs import NUMBERS, Ends, RowPrograms, some_of
from identilens.models.token_names import unmarked
from identilens.runs.tables import Columns, Row, decimals, integers
from identilens.studies.certify.functionals import ROW, Functionals, certified
from identilens.studies.outcomes import WITHIN, KeptOutcome, row_programs

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


def certified_rows(
    rows: Sequence[KeptOutcome],
    tokens: Sequence[str],
    allowed: Sequence[float],
    claims: Sequence[Functionals] = (),
    *,
    radii: Sequence[Float[Tensor, "two own"]] = (),
    certificates: bool = False,
) -> list[CertifiedRow]:
    """Return what is certain of rows, for all alternatives that change the outcome of each by at most so much.

    ``lo`` and ``hi`` are the proven ends of each functional; for ``norm_share`` and ``contribution`` see the measures;
    ``removal`` is the change of what the head adds when the key is removed, as a share of its length, missing where
    nothing else has weight or nothing is added. All of them are in units of the outcome. The verdict calls a weight
    determined by its interval alone. ``radii`` are those found for a smaller change, where there are any. ``claims``
    come with the coefficient of each key, and ``tokens`` are what stands at each key.

    Raises:
        NumericalError: A program whose answer cannot be certified.
    """
    # So many rows together as their columns and the weights of alternatives easily fit.
    each = 8 * max(4 * one.space.kept.numel() + one.row.numel() ** 2 for one in rows)
    parts = blocks(len(rows), each, rows[0].row.device)
    if len(parts) > 1:
        return [
            row
            for part in parts
            for row in certified_rows(
                rows[part],
                tokens,
                allowed[part],
                claims[part],
                radii=radii[part],
                certificates=certificates,
            )
        ]
    programs = row_programs(rows, allowed)
    ends = programs.ends()
    met, top = programs.farthest(ends), programs.top(ends).tolist()
    lengths = programs.length(met)
    radii = radii or row_radii(rows, programs, ends)
    claims = claims or [{}] * len(rows)
    proven = certified(rows, programs, claims, certificates=certificates)
    found = []
    for number, kept in enumerate(rows):
        own = kept.own[programs.keys] & programs.space.visible[number]
        keys = programs.keys[own] % kept.values.keys
        row = met.new_zeros(kept.values.keys)
        visible = torch.zeros_like(row, dtype=torch.bool).index_fill(0, keys, True)
        row, farthest = (row.scatter(0, keys, one[number, own]) for one in (programs.inside, met))
        bounds = ends.lo[number, own], ends.hi[number, own]
        functionals = _weights(kept.values, row, visible, *bounds, radii[number])
        for one in functionals:
            one["token"] = tokens[one["key"]]
        for (one, _), coefficients in zip(proven[number], claims[number].values(), strict=True):
            one["token"] = _counted(coefficients, keys.tolist(), tokens)
        whole = {
            "allowed": allowed[number],
            "effect": kept.effect,
            "cast": kept.answer and kept.answer.cast,
            "farthest": float((row - farthest).clamp_min(0.0).sum()),
            "predicted": float(kept.change(lengths[number])),
            "measured": kept.measured(farthest),
            "simplex_nullity": kept.values.simplex_space(visible).nullity,
            "certified_top": None if top[number] < 0 else top[number] % len(row),
            "gap": float(ends.gap[number]),
        }
        functionals += [one for one, _ in proven[number]]
        held = [certificate for _, certificate in proven[number]]
        found.append(CertifiedRow(functionals, whole, held, radii[number]))
    return found


def _counted(
    coefficients: Float[Tensor, " key"], keys: Sequence[int], tokens: Sequence[str]
) -> str:
    """Return in words what counts in a functional, and how often."""
    factors = {key: float(coefficients[key]) for key in keys if coefficients[key]}
    return ", ".join(
        f"{factor:.4g} times " * (factor != 1) + f"key {key} {unmarked(tokens[key])!r}"
        for key, factor in factors.items()
    )


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


def row_radii(
    rows: Sequence[KeptOutcome], programs: RowPrograms, ends: Ends
) -> list[Float[Tensor, "two own"]]:
    """Return the changes of the outcome up to which each weight is proven to stay determined, and negligible.

    NaN where it is not even with the allowed change, whose ends are given: also of any larger.
    """
    weight, lo, hi = programs.inside, ends.lo, ends.hi
    own = torch.stack([one.own[programs.keys] for one in rows]) & programs.space.visible
    even = (-FLOOR / own.sum(1, keepdim=True)).expand_as(weight).to(weight)
    limits = torch.stack([(1 - WITHIN) * weight, -(1 + WITHIN) * weight, even], 1)
    held = torch.stack([lo, -hi, -hi], 1) >= limits
    held[:, :2] &= held[:, :2].all(1, keepdim=True)
    open_, limits = (held & own[:, None]).flatten(1), limits.flatten(1)
    found = torch.full_like(limits, torch.nan)
    while open_.any():
        part, which = some_of(open_, max(1, NUMBERS // weight.numel()))
        costs = programs.units(which % weight.shape[1])
        costs = costs.where((which < weight.shape[1])[..., None], -costs)
        reached = programs.radius(costs, limits[part].gather(1, which), part)
        found[part] = found[part].scatter(1, which, reached)
        open_[part] = open_[part].scatter(1, which, False)
    lower, upper, negligible = found.unflatten(1, (3, -1)).unbind(1)
    radii = torch.stack([torch.minimum(lower, upper), negligible], 1)
    each = zip(rows, radii, own, strict=True)
    return [kept.change(numbers[:, mine]) for kept, numbers, mine in each]
