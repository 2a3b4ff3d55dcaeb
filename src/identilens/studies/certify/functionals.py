"""Functionals of a row of attention: value, proven ends, verdict and radius of each over all alternatives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.claims import FALSE, TRUE, Claim, ClaimRow, functionals_of
from identilens.linalg.certificate import Certificate
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import functional_ends
from identilens.measures.attention.row_solver import ORDER_MARGIN, RowSolver
from identilens.models.heads import CapturedLayer, Head
from identilens.runs.tables import HEAD, Columns, Row, decimals
from identilens.studies.drawn import drawn_rows
from identilens.studies.outcomes import KeptOutcome
from identilens.studies.settings import Tolerance

ROW: Columns = {**HEAD, "query": pl.Int64, "query_token": pl.String, "tolerance": pl.String}
"""The columns that name a row of attention, and up to which change of the outcome it is certified."""

PLACE = [name for name in ROW if name != "query_token"]
"""Columns that tell rows apart."""

CLAIMS: Columns = {
    **ROW,
    **dict.fromkeys(("outcome", "functional", "token"), pl.String),
    **decimals("value", "lo", "hi", "radius"),
    **dict.fromkeys(("verdict", "certificate"), pl.String),
}
"""The columns of functionals of a row other than the weight of a key."""

Functionals = Mapping[Claim, Float[Tensor, " key"]]
"""Claims with the coefficient of each key."""


def certified(
    kept: KeptOutcome,
    solver: RowSolver,
    functionals: Functionals,
    *,
    certificates: bool = False,
) -> list[tuple[Row, Certificate | None]]:
    """Return value, proven ends, verdict and radius of each functional, and with ``certificates`` what proves them."""
    if not functionals:
        return []
    costs = solver_costs(kept, solver, torch.stack([*functionals.values()]))
    values = costs @ solver.inside
    least, minus_greatest = solver.optima(torch.cat([costs, -costs])).bounds.chunk(2)
    # The row itself is an alternative.
    ends = torch.stack([torch.minimum(least, values), torch.maximum(-minus_greatest, values)], 1)
    found = []
    for claim, cost, value, own in zip(functionals, costs, values.tolist(), ends, strict=True):
        certificate = solver.certificate(cost) if certificates else None
        lo, hi = (own if certificate is None else certificate.ends).tolist()
        verdict, radius = claim.verdict(lo, hi), None
        if verdict in (TRUE, FALSE):
            sign = 1.0 if lo > claim.bound else -1.0
            limit = cost.new_tensor([sign * claim.bound + ORDER_MARGIN])
            radius = float(kept.change(solver.radius(sign * cost[None], limit)))
        named = {"functional": claim.words, "value": value, "lo": lo, "hi": hi}
        found.append(({**named, "verdict": verdict, "radius": radius}, certificate))
    return found


def solver_costs(
    kept: KeptOutcome, solver: RowSolver, coefficients: Float[Tensor, "functional key"]
) -> Float[Tensor, "functional seen"]:
    """Return functionals of a head's row as costs of its programs."""
    own = kept.own[solver.keys]
    costs = solver.inside.new_zeros(len(coefficients), len(own))
    costs[:, own] = coefficients.to(costs)[:, solver.keys[own] % kept.values.keys]
    return costs


def proven_rows(
    pairs: Sequence[tuple[Head, int]],
    claims: Iterable[Claim],
    costs: Float[Tensor, "#row functional key"],
    tolerances: Sequence[Tolerance],
) -> pl.DataFrame:
    """Return value and proven ends of functionals of rows of heads, all rows together: by row and tolerance.

    ``row`` is the number of a row of its head; a learnt sink is one more key.

    Raises:
        UnsupportedModelError: As `Head.attention`.
        NumericalError: A program whose answer cannot be certified.
    """
    rows, seen, compact, places = [], [], [], []
    T = pairs[0][0].projected
    for head, row in pairs:
        weights, T, visible = head.distributions(head.at(row))
        rows.append(weights[row])
        seen.append(weights[row] >= 0 if visible is None else visible[row])
        compact.append(T.compact)
        places.append({"layer": head.layer, "head": head.head, "kind": head.kind, "row": row})
    T, visible = replace(T, values=torch.stack(compact), output=None), torch.stack(seen)
    weights = checked_weights(torch.stack(rows), T, visible)
    costs = costs.to(weights).expand(len(weights), -1, -1)
    values = (costs @ weights[..., None])[..., 0]
    found = [(values, *functional_ends(weights, T, costs, visible, one.size)) for one in tolerances]
    ends = zip(("value", "lo", "hi"), zip(*found, strict=True), strict=True)
    columns = {name: pl.Series(torch.stack(one, 1).flatten().cpu().numpy()) for name, one in ends}
    names = pl.DataFrame({"tolerance": [one.name for one in tolerances]})
    words = pl.DataFrame({"functional": [claim.words for claim in claims]})
    at = pl.DataFrame(places).join(names, how="cross").join(words, how="cross")
    return at.with_columns(**columns)


def layer_functionals(
    layer: CapturedLayer,
    rows: Sequence[Row],
    keys: Sequence[str],
    claims: Iterable[Claim],
    tolerances: Sequence[Tolerance],
    seed: int,
    bounded: int,
) -> pl.DataFrame:
    """Return the value of claims in all rows of a layer on one text, and again their ends in rows that the seed draws.

    ``rows`` are columns of each row, ``keys`` what stands at each key; a learnt sink is one more.
    """
    heads, text = [*layer.heads], rows[0]["text"]
    functionals = functionals_of(claims, ClaimRow(heads[0], 0, keys, text))
    costs = torch.stack([*functionals.values()])
    weights = torch.stack([head.distributions(head.projected)[0] for head in heads])
    values = (weights @ costs.mT.to(weights)).flatten().cpu().numpy()
    numbered = pl.DataFrame(rows).with_columns(row=pl.int_range(pl.len()))
    places = [{"layer": head.layer, "head": head.head, "kind": head.kind} for head in heads]
    words = pl.DataFrame({"functional": [claim.words for claim in functionals]})
    every = pl.DataFrame(places).join(numbered, how="cross").join(words, how="cross")
    place = seed, text, layer.site.layer, layer.site.kind
    drawn = drawn_rows(*place, len(heads) * len(rows), bounded)
    frames = [pl.DataFrame(schema=pl.Schema(CLAIMS)), every.with_columns(value=values)]
    if drawn:
        pairs = [(heads[number // len(rows)], number % len(rows)) for number in drawn]
        proven = proven_rows(pairs, functionals, costs[None], tolerances)
        frames.append(proven.join(numbered, on="row", maintain_order="left"))
    every = pl.concat(frames, how="diagonal_relaxed").drop("row")
    return every.with_columns(outcome=pl.lit("head"))
