"""Functionals of a row of attention: value, proven ends, verdict and radius of each over all alternatives."""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.claims import FALSE, TRUE, Claim, ClaimRow, functionals_of
from identilens.linalg.certificate import Certificate
from identilens.measures.attention.row_solver import ORDER_MARGIN, RowSolver
from identilens.models.heads import CapturedLayer
from identilens.runs.tables import HEAD, Columns, Row, decimals
from identilens.studies.drawn import drawn_rows
from identilens.studies.outcomes import KeptOutcome, of_row
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
    weights, costs = torch.stack([head.attention for head in heads]), [*functionals.values()]
    if layer.sink:
        rest = (1 - weights.sum(-1, keepdim=True)).clamp_min(0.0)
        weights = torch.cat([weights, rest], -1)
    places = [{"layer": head.layer, "head": head.head, "kind": head.kind} for head in heads]
    words = pl.DataFrame({"functional": [claim.words for claim in functionals]})
    every = pl.DataFrame(places).join(pl.DataFrame(rows), how="cross").join(words, how="cross")
    values = (weights @ torch.stack(costs).mT.to(weights)).flatten().cpu().numpy()
    place = seed, text, layer.site.layer, layer.site.kind
    proven: list[Row] = []
    for number in drawn_rows(*place, len(heads) * len(rows), bounded):
        head, row = divmod(number, len(rows))
        kept = of_row(heads[head], row)
        for tolerance in tolerances:
            solver = kept.solver(kept.allowed(tolerance))
            at = {**places[head], **rows[row], "tolerance": tolerance.name}
            found = certified(kept, solver, functionals)
            proven += [at | one for one, _ in found]
    frames = [
        pl.DataFrame(schema=pl.Schema(CLAIMS)),
        every.with_columns(value=values),
        pl.DataFrame(proven),
    ]
    return pl.concat(frames, how="diagonal_relaxed").with_columns(outcome=pl.lit("head"))
