"""Certificates of single rows: each weight's interval, share of the output and verdict, and the order of keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.claims import FALSE, TRUE, Claim
from identilens.linalg.certificate import Certificate
from identilens.measures.attention.influence import contribution_weights, norm_share, removal_effect
from identilens.measures.attention.intervals import PIN_TOLERANCE, minimum_norm_alternative
from identilens.measures.attention.row_solver import ORDER_MARGIN, Ends, RowSolver
from identilens.models.token_names import unmarked
from identilens.runs.tables import HEAD, Columns, Row, table_of
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

_TINY = torch.finfo(torch.float64).tiny

VERDICTS = (
    "determined, large share",
    "determined, small share",
    "not determined, large share",
    "not determined, small share",
    "negligible",
)

ROW: Columns = {**HEAD, "query": pl.Int64, "query_token": pl.String, "tolerance": pl.String}
"""The columns that name a row of attention, and up to which change of the outcome it is certified."""

SCHEMA: Mapping[str, Columns] = {
    "table": {
        **ROW,
        "key": pl.Int64,
        "token": pl.String,
        "weight": pl.Float64,
        "lo": pl.Float64,
        "hi": pl.Float64,
        "radius": pl.Float64,
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
        "outcome": pl.String,
        "answer": pl.String,
        "allowed": pl.Float64,
        "effect": pl.Float64,
        "cast": pl.Float64,
        "farthest": pl.Float64,
        "predicted": pl.Float64,
        "measured": pl.Float64,
        "simplex_nullity": pl.Int64,
        "certified_top": pl.Int64,
        "certified_source": pl.Int64,
        "certified_pairs": pl.Int64,
        "pairs": pl.Int64,
        "gap": pl.Float64,
    },
    "claims": {
        **ROW,
        "outcome": pl.String,
        "claim": pl.String,
        "subject": pl.String,
        "keys": pl.String,
        "value": pl.Float64,
        "lo": pl.Float64,
        "hi": pl.Float64,
        "verdict": pl.String,
        "radius": pl.Float64,
        "certificate": pl.String,
    },
    "order": {
        **HEAD,
        "query": pl.Int64,
        "tolerance": pl.String,
        "above": pl.Int64,
        "below": pl.Int64,
    },
    "parts": {
        "text": pl.Int64,
        "query": pl.Int64,
        "query_token": pl.String,
        "source": pl.String,
        "part": pl.String,
        "layer": pl.Int64,
        "value": pl.Float64,
    },
}
"""The tables of a certificate: one row for each weight, for each row of attention, claim, and pair of keys.

``radius`` is the largest change of the outcome up to which the verdict determined or negligible, or that on a claim, is
proven (infinite if by the signs and the sum of the weights alone); ``allowed`` the one that the tolerance allows;
``effect`` the one without the head's row (states and prediction; ``answer`` says at which positions they count);
``cast`` the one that single precision makes by itself, in which the first order of a model in half precision is found.
``farthest`` is the total variation distance of the farthest alternative met; ``predicted`` and ``measured`` are the
changes that it makes, by the first order and put into the model. ``keys`` are those that a claim is about.
``certified_source`` is the key that adds most to the ``source``, by absolute value, in every alternative. ``parts`` are
those that the source is the sum of, and itself.
"""


@dataclass(frozen=True)
class RowCertificates:
    """Certificates of rows of one head: the rows of the tables in `SCHEMA`."""

    tables: dict[str, list[Row]]

    @classmethod
    def empty(cls) -> "RowCertificates":
        """Return no certificates."""
        return cls({name: [] for name in SCHEMA})

    def add(
        self,
        at: Row,
        columns: "CertifiedColumns",
        tokens: Sequence[str],
        also: Row,
    ) -> None:
        """Add one row of attention; ``at`` has its `ROW` columns, ``tokens`` are those of all keys.

        ``also`` has the columns of the row that its certificate does not know.
        """
        for values in zip(*columns.keys.values(), strict=True):
            key = dict(zip(columns.keys, values, strict=True))
            self.tables["table"].append({**at, "token": tokens[key["key"]], **key})
        self.tables["rows"].append({**at, **columns.row, **also})
        self.tables["claims"] += [
            {
                **at,
                "outcome": also["outcome"],
                "claim": one.claim.words,
                "subject": one.claim.subject,
                "keys": ", ".join(
                    f"{f'{times:g} times ' * (times != 1)}key {key} {unmarked(tokens[key])!r}"
                    for key, times in one.counted.items()
                ),
                **one.columns,
            }
            for one in columns.claims
        ]
        place = {name: at[name] for name in (*HEAD, "query", "tolerance")}
        self.tables["order"] += [
            {**place, "above": above, "below": below} for above, below in columns.order
        ]

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the tables."""
        return {name: table_of(columns, self.tables[name]) for name, columns in SCHEMA.items()}


@dataclass(frozen=True)
class CertifiedClaim:
    """What is certain of a linear functional of one row.

    Attributes:
        counted: The coefficient of each key that counts.
        columns: Of the table of claims.
        certificate: What proves the ends, where it was asked for.
    """

    claim: Claim
    counted: dict[int, float]
    columns: dict[str, Any]
    certificate: Certificate | None = None


@dataclass(frozen=True)
class CertifiedColumns:
    """What is certain of one row.

    Attributes:
        keys: By column of the table, a value for each visible key.
        row: Columns of the row as a whole.
        order: Pairs of keys, the first of which has the larger weight in every alternative.
        claims: What is certain of each claim.
        farthest: The alternative met that is farthest from the row.
        radii: `row_radii` of the keys.
    """

    keys: dict[str, list[Any]]
    row: Row
    order: list[list[int]]
    claims: list["CertifiedClaim"]
    farthest: Float[Tensor, " key"]
    radii: Float[Tensor, "two own"]


def certified_columns(
    kept: KeptOutcome,
    allowed: float = 0.0,
    *,
    radii: Float[Tensor, "two own"] | None = None,
    pin_tolerance: float = PIN_TOLERANCE,
    order: bool = False,
    claims: Mapping[Claim, Float[Tensor, " key"]] | None = None,
    added: Float[Tensor, " key"] | None = None,
    certificates: bool = False,
) -> CertifiedColumns:
    """Return the certificate of one row, in columns, for all alternatives that change the outcome by at most so much.

    ``lo`` and ``hi`` are the proven ends of each weight; for ``norm_share`` and ``contribution`` see the measures;
    ``removal`` is the change of what the head adds when the key is removed, as a share of its length, missing where
    nothing else has weight or nothing is added. All of them are in units of the outcome. The verdict calls a weight
    determined by its interval alone. ``radii`` are those found for a smaller change, where there are any. Pairs of
    keys are certified only with ``order``; ``claims`` come with the coefficient of each key, and ``added`` is what a
    weight of 1 on each key adds to the source.

    Raises:
        NumericalError: A program whose answer cannot be certified.
    """
    solver = kept.solver(allowed)
    ends = solver.ends()
    above = solver.order(ends) if order else None
    top = solver.top(ends)
    own = kept.own[solver.keys]
    keys = solver.keys[own] % kept.values.keys
    weight, lo, hi = (one[own] for one in (solver.inside, *ends))
    row = torch.zeros(kept.values.keys, dtype=torch.float64).scatter(0, keys, weight)
    visible, T = row.new_zeros(len(row), dtype=torch.bool), kept.values
    visible[keys] = True
    columns = {
        "weight": weight,
        "lo": lo,
        "hi": hi,
        "pinned": hi - lo <= pin_tolerance,
        "effective": T.effective(row[None], visible[None])[0][keys],
        "minimum_norm": minimum_norm_alternative(row, T, visible=visible).point[keys],
        "norm_share": norm_share(row[None], T)[0][keys],
        "contribution": contribution_weights(row[None], T)[0][keys],
        "removal": removal_effect(row[None], T, relative=True)[0][keys],
    }
    verdict = _verdicts(weight, lo, hi, columns["norm_share"])
    radii = row_radii(kept, solver, lo, hi, allowed) if radii is None else radii
    determined, negligible = radii
    columns["radius"] = torch.where(
        verdict < 2, determined, torch.where(verdict == len(VERDICTS) - 1, negligible, torch.nan)
    )
    listed = {"key": keys.tolist()} | {name: column.tolist() for name, column in columns.items()}
    for name in ("removal", "radius"):
        listed[name] = [value if isfinite(value) else None for value in listed[name]]
    listed["verdict"] = [VERDICTS[number] for number in verdict.tolist()]
    pairs = None if above is None else (solver.keys[torch.nonzero(above)] % len(row)).tolist()
    met = solver.farthest()
    farthest = row.scatter(0, keys, met[own])
    whole = {
        "allowed": allowed,
        "effect": kept.effect,
        "cast": kept.answer and kept.answer.cast,
        "farthest": float((row - farthest).clamp_min(0.0).sum()),
        "predicted": float(kept.change(solver.length(met))),
        "simplex_nullity": T.simplex_space(visible).nullity,
        "certified_top": None if top is None else top % len(row),
        "certified_source": _largest_source(kept, solver, ends, added),
        "certified_pairs": None if pairs is None else len(pairs),
        "pairs": len(keys) * (len(keys) - 1) // 2,
        "gap": solver.gap,
    }
    said = certified(kept, solver, claims or {}, allowed, ends, certificates=certificates)
    return CertifiedColumns(listed, whole, pairs or [], said, farthest, radii)


def _largest_source(
    kept: KeptOutcome, solver: RowSolver, ends: Ends, added: Float[Tensor, " key"] | None
) -> int | None:
    """Return the key whose weight times what it adds is the largest, by absolute value, in every alternative."""
    if added is None:
        return None
    sizes = solver_costs(kept, solver, added[None])[0].abs()
    largest = solver.top(ends, sizes / sizes.max().clamp_min(_TINY))
    return None if largest is None else largest % kept.values.keys


def certified(
    kept: KeptOutcome,
    solver: RowSolver,
    functionals: Mapping[Claim, Float[Tensor, " key"]],
    allowed: float,
    ends: Ends | None = None,
    *,
    certificates: bool = False,
) -> list[CertifiedClaim]:
    """Return value, proven ends, verdict and radius of each functional, and with ``certificates`` what proves them.

    ``ends`` are those of the weights, where they are known.
    """
    if not functionals:
        return []
    coefficients = torch.stack([*functionals.values()])
    costs = solver_costs(kept, solver, coefficients)
    numbers = functional_ends(solver, costs, ends)
    keys = (solver.keys[kept.own[solver.keys]] % kept.values.keys).tolist()
    found = []
    for claim, own, cost, (value, lo, hi) in zip(
        functionals, coefficients.tolist(), costs, numbers.T.tolist(), strict=True
    ):
        certificate = solver.certificate(cost) if certificates else None
        if certificate is not None:
            lo, hi = certificate.ends.tolist()
        verdict, radius = claim.verdict(lo, hi), None
        if verdict in (TRUE, FALSE):
            sign = 1.0 if lo > claim.bound else -1.0
            radius = _radius(kept, solver, sign * cost, sign * claim.bound + ORDER_MARGIN, allowed)
        columns = {"value": value, "lo": lo, "hi": hi, "verdict": verdict, "radius": radius}
        counted = {key: own[key] for key in keys if own[key]}
        found.append(CertifiedClaim(claim, counted, {**columns, "certificate": None}, certificate))
    return found


def solver_costs(
    kept: KeptOutcome, solver: RowSolver, coefficients: Float[Tensor, "functional key"]
) -> Float[Tensor, "functional seen"]:
    """Return functionals of a head's row as costs of its programs."""
    own = kept.own[solver.keys]
    costs = coefficients.new_zeros(len(coefficients), len(own))
    costs[:, own] = coefficients[:, solver.keys[own] % kept.values.keys]
    return costs


def functional_ends(
    solver: RowSolver, costs: Float[Tensor, "functional seen"], ends: Ends | None = None
) -> Float[Tensor, "three functional"]:
    """Return the value of linear functionals of a row, and their least and greatest over all alternatives.

    ``ends`` are those of the weights, where they are known: they are those of a functional of one key, too.
    """
    values = costs @ solver.inside
    numbers = values.repeat(3, 1)
    # All alternatives have the same sums: what is the same on all keys of all rows does not change.
    open_ = (costs != costs[:, :1]).any(1)
    if ends is not None:
        single = (costs != 0).sum(1) == 1
        scaled = torch.stack([costs[single] @ end for end in ends])
        numbers[1, single], numbers[2, single] = scaled.amin(0), scaled.amax(0)
        open_ &= ~single
    # Programs are solved to an absolute accuracy.
    sizes = costs[open_].abs().amax(1).clamp_min(_TINY)
    asked = costs[open_] / sizes[:, None]
    least, minus_greatest = solver.least(torch.cat([asked, -asked])).chunk(2)
    # The row itself is an alternative.
    numbers[1, open_] = torch.minimum(sizes * least, values[open_])
    numbers[2, open_] = torch.maximum(-sizes * minus_greatest, values[open_])
    return numbers


def _radius(
    kept: KeptOutcome,
    solver: RowSolver,
    cost: Float[Tensor, " seen"],
    limit: float,
    allowed: float,
) -> float:
    """Return up to which change of the outcome a functional is proven to reach a limit."""
    if float(cost.min() * solver.inside.sum()) >= limit:
        return inf
    size = cost.abs().max()
    reached = solver.radius(cost[None] / size, limit / size[None], kept.length(allowed))
    return float(kept.change(reached))


def row_radii(
    kept: KeptOutcome,
    solver: RowSolver,
    lo: Float[Tensor, " own"],
    hi: Float[Tensor, " own"],
    allowed: float,
) -> Float[Tensor, "two own"]:
    """Return the changes of the outcome up to which each weight is proven to stay determined, and negligible.

    NaN where it is not even with the change that is ``allowed``, whose ends are ``lo`` and ``hi``: also of any larger.
    """
    weight, own = solver.inside, kept.own[solver.keys]
    limits = torch.stack([(1 - WITHIN) * weight, -(1 + WITHIN) * weight])[:, own]
    limits = torch.cat([limits, torch.full_like(limits[:1], -FLOOR / limits.shape[1])])
    held = torch.stack([lo, -hi, -hi]) >= limits
    held[:2] &= held[:2].all(0)
    which, key = held.nonzero().T
    found, start = torch.full_like(limits, torch.nan), kept.length(allowed)
    for at in solver.parts(torch.arange(len(key))):
        place = which[at], key[at]
        costs = torch.where(which[at, None] == 0, 1.0, -1.0) * solver.units(
            own.nonzero()[key[at], 0]
        )
        found[place] = solver.radius(costs, limits[place], start)
    lower, upper, negligible = found
    return kept.change(torch.stack([torch.minimum(lower, upper), negligible]))


def _verdicts(weight: Tensor, lo: Tensor, hi: Tensor, share: Tensor) -> Int[Tensor, " key"]:
    """Return the number of each weight's verdict in `VERDICTS`."""
    even = 1 / len(weight)
    free = (lo < (1 - WITHIN) * weight) | (hi > (1 + WITHIN) * weight)
    # Equal parts are all large, however they round.
    small = share < EVEN * even * (1 - 1e-9)
    negligible = small & (hi < FLOOR * even)
    return torch.where(negligible, len(VERDICTS) - 1, 2 * free.long() + small.long())
