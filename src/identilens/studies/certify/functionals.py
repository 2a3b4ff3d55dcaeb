"""Functionals of a row of attention: value, proven ends, verdict and radius of each over all alternatives."""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.claims import FALSE, TRUE, Claim, ClaimRow, functionals_of
from identilens.measures.attention.row_programs import ORDER_MARGIN, RowPrograms
from identilens.models.heads import CapturedLayer, Head
from identilens.runs.tables import HEAD, Columns, Row, decimals
from identilens.studies.drawn import drawn_rows
from identilens.studies.heads import shaped
from identilens.studies.outcomes import KeptOutcome, of_rows, row_programs
from identilens.studies.settings import Tolerance

ROW: Columns = {**HEAD, "query": pl.Int64, "query_token": pl.String, "tolerance": pl.String}
"""The columns that name a row of attention, and up to which change of the outcome it is certified."""

PLACE = [name for name in ROW if name != "query_token"]
"""Columns that tell rows apart."""

CLAIMS: Columns = {
    **ROW,
    **dict.fromkeys(("outcome", "functional"), pl.String),
    **decimals("value", "lo", "hi", "radius"),
    **dict.fromkeys(("verdict", "certificate"), pl.String),
}
"""The columns of functionals of a row other than the weight of a key."""

Functionals = Mapping[Claim, Float[Tensor, " key"]]
"""Claims with the coefficient of each key."""


def certified(
    rows: Sequence[KeptOutcome],
    programs: RowPrograms,
    functionals: Sequence[Functionals],
    *,
    certificates: bool = False,
) -> list[list[Row]]:
    """Return value, proven ends, verdict, radius and certificate of each functional of each row."""
    count = max(map(len, functionals))
    if not count:
        return [[] for _ in rows]
    inside = programs.inside
    costs = inside.new_zeros(len(rows), count, inside.shape[1])
    limits = costs[..., 0].clone()
    for number, (kept, claims) in enumerate(zip(rows, functionals, strict=True)):
        if not claims:
            continue
        own, given = programs.asked[number], torch.stack([*claims.values()]).to(inside)
        costs[number, : len(claims), own] = given[:, programs.keys[own] % kept.values.keys]
        limits[number, : len(claims)] = limits.new_tensor([claim.bound for claim in claims])
    values = (costs @ inside[..., None])[..., 0]
    lo, hi, _ = programs.between(costs)
    signs = 2.0 * (lo > limits) - 1.0
    reached, found = lo, []
    if any(claim.sign for claims in functionals for claim in claims):
        every = torch.arange(len(rows), device=lo.device)
        reached = programs.radius(signs[..., None] * costs, signs * limits + ORDER_MARGIN, every)
    for number, (kept, claims) in enumerate(zip(rows, functionals, strict=True)):
        columns = values[number], lo[number], hi[number], kept.change(reached[number])
        proven = []
        for claim, cost, numbers in zip(
            claims, costs[number], torch.stack(columns, 1).tolist(), strict=False
        ):
            one: Row = dict(zip(("value", "lo", "hi", "radius"), numbers, strict=True))
            if certificates:
                one["certificate"] = programs.certificate(number, cost)
                one["lo"], one["hi"] = one["certificate"].ends.tolist()
            verdict = claim.verdict(one["lo"], one["hi"])
            one |= {"functional": claim.words, "verdict": verdict}
            if verdict not in (TRUE, FALSE):
                one["radius"] = None
            proven.append(one)
        found.append(proven)
    return found


def proven_rows(
    pairs: Sequence[tuple[Head, int]],
    functionals: Sequence[Functionals],
    tolerances: Sequence[Tolerance],
) -> pl.DataFrame:
    """Return value and proven ends of functionals of rows of heads, all rows together: by row and tolerance.

    ``row`` is the number of a row of its head; a learnt sink is one more key.

    Raises:
        UnsupportedModelError: As `Head.attention`.
        NumericalError: A program whose answer cannot be certified.
    """
    kept = of_rows(pairs)
    found = [
        certified(kept, row_programs(kept, [one.size] * len(kept)), functionals)
        for one in tolerances
    ]
    rows = []
    for number, (head, row) in enumerate(pairs):
        place = {"layer": head.layer, "head": head.head, "kind": head.kind, "row": row}
        for tolerance, proven in zip(tolerances, found, strict=True):
            rows += [{**place, "tolerance": tolerance.name, **one} for one in proven[number]]
    return pl.DataFrame(rows)


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
    frames = [every.with_columns(value=values)]
    place = seed, text, layer.site.layer, layer.site.kind
    if drawn := drawn_rows(*place, len(heads) * len(rows), bounded):
        pairs = [(heads[number // len(rows)], number % len(rows)) for number in drawn]
        proven = proven_rows(pairs, [functionals] * len(pairs), tolerances)
        frames.append(proven.join(numbered, on="row", maintain_order="left"))
    return shaped(CLAIMS, frames).with_columns(outcome=pl.lit("head"))
