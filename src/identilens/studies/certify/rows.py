"""Certificates of rows: value, proven ends, verdict and radius of weights, and of other functionals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from identilens.claims import FALSE, TRUE, Claim, ClaimRow, functionals_of
from identilens.errors import UnsupportedModelError
from identilens.linalg import ProjectedValues
from identilens.linalg.memory import blocks
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import least_weights, shared_spaces
from identilens.measures.attention.influence import contribution_weights, norm_share, removal_effect
from identilens.measures.attention.row_programs import (
    NUMBERS,
    ORDER_MARGIN,
    Ends,
    RowPrograms,
    allowed_change,
    optima_of,
    some_of,
)
from identilens.models.heads import CapturedLayer, Head
from identilens.runs.tables import HEAD, Columns, Row, decimals, integers
from identilens.studies.drawn import drawn_rows
from identilens.studies.heads import shaped
from identilens.studies.outcomes import WITHIN, KeptOutcome, of_rows, row_programs
from identilens.studies.settings import ROUNDING, Tolerance

ROW: Columns = {
    **HEAD,
    "query": pl.Int64,
    "query_token": pl.String,
    "tolerance": pl.String,
}
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

CLOSE = 0.01
"""A lower bound this close to the exact certain mass is taken as what is left of it up to rounding."""

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
is that of a weight, and ``token`` what stands there. Columns after ``certificate`` are of weights. ``radius`` is the
largest change of the outcome up to which the verdict determined or negligible, or that on a claim, is proven (infinite
if by the signs and the sum of the weights alone); ``allowed`` the one that the tolerance allows; ``effect`` the one
without the head's row (states and prediction; ``answer`` says at which positions they count); ``cast`` the one that
single precision makes by itself, in which the first order of a model in half precision is found. ``farthest`` is the
total variation distance of the farthest alternative met; ``predicted`` and ``measured`` are the changes that it makes,
by the first order and put into the model.
"""


def certified_rows(
    rows: Sequence[KeptOutcome],
    tokens: Sequence[str],
    allowed: Sequence[Sequence[float]],
    claims: Sequence[Functionals] = (),
    *,
    certificates: bool = False,
    radii: bool = True,
) -> list[dict[str, list[Row]]]:
    """Return what is certain of rows, for all alternatives that change the outcome of each by at most so much.

    Row by row, for each of its changes in ``allowed``, as many of each. ``lo`` and ``hi`` are the proven ends of each
    functional; for ``norm_share`` and ``contribution`` see the measures; ``removal`` is the change of what the head
    adds when the key is removed, as a share of its length, missing where nothing else has weight or nothing is added.
    All of them are in units of the outcome. The verdict calls a weight determined by its interval alone. ``claims``
    come with the coefficient of each key, and ``tokens`` are what stands at each key. In the rows of the tables, see
    `SCHEMA`, a certificate is no file yet.

    Raises:
        NumericalError: A program whose answer cannot be certified.
    """
    count, claims, tables = len(allowed[0]), claims or [{}] * len(rows), []
    # So many rows together as the products of their columns easily fit.
    each = 8 * count * max(row.space.kept.numel() * row.space.rank for row in rows)
    for part in blocks(len(rows), each, rows[0].row.device):
        some = [row for row in rows[part] for _ in range(count)]
        changes = [change for sizes in allowed[part] for change in sizes]
        programs = row_programs(some, changes)
        ends = programs.ends()
        met, top = programs.farthest(ends), programs.top(ends).tolist()
        lengths = programs.length(met)
        asked = [costs for costs in claims[part] for _ in range(count)]
        proven = certified(some, programs, asked, certificates=certificates)
        # Radii are found for the smallest change: what is not determined there is so for no larger one.
        least = [count * row + sizes.index(min(sizes)) for row, sizes in enumerate(allowed[part])]
        reached = met.new_full((len(least), 2, len(programs.keys)), torch.nan)
        if radii:
            reached = row_radii(programs, ends, torch.tensor(least, device=met.device))
        for number, kept in enumerate(some):
            mask = programs.asked[number]
            row, visible = kept.row[kept.of_head], kept.space.visible[kept.of_head]
            farthest = torch.zeros_like(row).masked_scatter(visible, met[number, mask])
            radius = kept.change(reached[number // count][:, mask])
            lo, hi = ends.lo[number, mask], ends.hi[number, mask]
            weights = _weights(kept.values, row, visible, lo, hi, radius, tokens)
            columns = {
                "allowed": changes[number],
                "effect": kept.effect,
                "cast": kept.answer and kept.answer.cast,
                "farthest": float((row - farthest).clamp_min(0.0).sum()),
                "predicted": float(kept.change(lengths[number])),
                "measured": kept.measured(farthest),
                "simplex_nullity": kept.values.simplex_space(visible).nullity,
                "certified_top": None if top[number] < 0 else top[number] % len(row),
                "gap": float(ends.gap[number]),
            }
            tables.append({"table": weights + proven[number], "rows": [columns]})
    return tables


def _weights(
    T: ProjectedValues,
    row: Float[Tensor, " key"],
    visible: Bool[Tensor, " key"],
    lo: Float[Tensor, " seen"],
    hi: Float[Tensor, " seen"],
    radii: Float[Tensor, "two radius"],
    tokens: Sequence[str],
) -> list[Row]:
    """Return the columns of each visible key's weight, given its ends."""
    shares = {
        "effective": T.effective(row[None], visible[None]),
        "norm_share": norm_share(row[None], T),
        "contribution": contribution_weights(row[None], T),
        "removal": removal_effect(row[None], T, relative=True),
    }
    columns = {
        "key": visible.nonzero()[:, 0],
        "value": row[visible],
        "lo": lo,
        "hi": hi,
    }
    columns |= {name: share[0, visible] for name, share in shares.items()}
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
    listed["token"] = [tokens[key] for key in listed["key"]]
    return pl.DataFrame(listed).to_dicts()


def row_radii(
    programs: RowPrograms, ends: Ends, rows: Int[Tensor, " part"]
) -> Float[Tensor, "part two seen"]:
    """Return the lengths up to which each weight of some rows is proven to stay determined, and negligible.

    NaN where it is not even with the allowed one, whose ends are given: also of any larger.
    """
    weight, lo, hi, asked = (
        tensor[rows] for tensor in (programs.inside, ends.lo, ends.hi, programs.asked)
    )
    even = (-FLOOR / asked.sum(1, keepdim=True)).expand_as(weight)
    limits = torch.stack([(1 - WITHIN) * weight, -(1 + WITHIN) * weight, even], 1)
    held = torch.stack([lo, -hi, -hi], 1) >= limits
    held[:, :2] &= held[:, :2].all(1, keepdim=True)
    open_, limits = (held & asked[:, None]).flatten(1), limits.flatten(1)
    radii = torch.full_like(limits, torch.nan)
    while open_.any():
        part, which = some_of(open_, max(1, NUMBERS // weight.numel()))
        costs = programs.units(which % weight.shape[1])
        costs = costs.where((which < weight.shape[1])[..., None], -costs)
        reached = programs.radius(costs, limits[part].gather(1, which), rows[part])
        radii[part] = radii[part].scatter(1, which, reached)
        open_[part] = open_[part].scatter(1, which, False)
    lower, upper, negligible = radii.unflatten(1, (3, -1)).unbind(1)
    return torch.stack([torch.minimum(lower, upper), negligible], 1)


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
        asked, stacked = programs.asked[number], torch.stack([*claims.values()]).to(inside)
        costs[number, : len(claims), asked] = stacked[:, programs.keys[asked] % kept.values.keys]
        limits[number, : len(claims)] = limits.new_tensor([claim.bound for claim in claims])
    values = (costs @ inside[..., None])[..., 0]
    lo, hi, _ = programs.between(costs)
    signs = 2.0 * (lo > limits) - 1.0
    reached, results = lo, []
    if any(claim.sign for claims in functionals for claim in claims):
        every = torch.arange(len(rows), device=lo.device)
        reached = programs.radius(signs[..., None] * costs, signs * limits + ORDER_MARGIN, every)
    for number, (kept, claims) in enumerate(zip(rows, functionals, strict=True)):
        columns = values[number], lo[number], hi[number], kept.change(reached[number])
        proven = []
        for claim, cost, numbers in zip(
            claims, costs[number], torch.stack(columns, 1).tolist(), strict=False
        ):
            row: Row = dict(zip(("value", "lo", "hi", "radius"), numbers, strict=True))
            if certificates:
                row["certificate"] = programs.certificate(number, cost)
                row["lo"], row["hi"] = row["certificate"].ends.tolist()
            verdict = claim.verdict(row["lo"], row["hi"])
            row |= {"functional": claim.words, "verdict": verdict}
            if verdict not in (TRUE, FALSE):
                row["radius"] = None
            proven.append(row)
        results.append(proven)
    return results


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
    results = [
        certified(kept, row_programs(kept, [tolerance.size] * len(kept)), functionals)
        for tolerance in tolerances
    ]
    rows = []
    for number, (head, row) in enumerate(pairs):
        columns = {"layer": head.layer, "head": head.head, "kind": head.kind, "row": row}
        for tolerance, proven in zip(tolerances, results, strict=True):
            rows += [
                {**columns, "tolerance": tolerance.name, **result} for result in proven[number]
            ]
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
    seeds = seed, text, layer.site.layer, layer.site.kind
    if drawn := drawn_rows(*seeds, len(heads) * len(rows), bounded):
        pairs = [(heads[number // len(rows)], number % len(rows)) for number in drawn]
        proven = proven_rows(pairs, [functionals] * len(pairs), tolerances)
        frames.append(proven.join(numbered, on="row", maintain_order="left"))
    return shaped(CLAIMS, frames).with_columns(outcome=pl.lit("head"))


def certain_rows(
    layer: CapturedLayer,
    projected: ProjectedValues,
    queries: Sequence[int],
    sinks: Sequence[int],
) -> list[Row]:
    """Return what is certain of the rows of a layer that contains these queries only, head by head.

    ``projected`` are the values of its heads, ``sinks`` the position of each head's sink. Nothing is of heads whose
    weights are known in half precision only (`Head.attention`).

    Raises:
        NumericalError: If a program's answer cannot be certified.
    """
    rows: list[Tensor] = []
    proven = []
    visible, T = None, projected
    for number, head in enumerate(layer.heads):
        try:
            weights, T, visible = head.distributions(projected)
        except UnsupportedModelError:
            continue
        rows.append(checked_weights(weights, T, visible))
        proven.append(number)
    if not proven:
        return []
    weights, T = torch.stack(rows), replace(T, values=T.compact[proven], output=None)
    sink = one_hot(torch.tensor(sinks, device=weights.device)[proven], T.keys).to(weights)
    allowed = allowed_change(weights, T, ROUNDING["bfloat16"])
    names = (
        "certain_mass",
        "certain_mass_bfloat16",
        "sink_weight",
        "sink_lo",
        "sink_hi",
    )
    columns = allowed.new_zeros(len(names), *allowed.shape)
    for space, some, keys in shared_spaces(T, len(queries), visible):
        index = slice(None), some[..., None], keys
        on_sink = sink[:, None].expand_as(weights)[index].flatten(0, 1)
        inside, moved = weights[index].flatten(0, 1), allowed[:, some].flatten(0, 1)
        lower, slopes = least_weights(space, inside, 0 * moved)
        mass = lower.sum(-1).clamp_max(1.0)
        # What proves the exact ends bounds what is left of them where the output is rounded.
        rounded = (lower - moved[..., None] * slopes).clamp_min(0.0).sum(-1)
        loose = mass - rounded > CLOSE
        heads = loose.any(1).nonzero()[:, 0]
        if len(heads):
            ends, _ = least_weights(space.of(heads), inside[heads], moved[heads])
            rounded[heads] = ends.sum(-1).where(loose[heads], rounded[heads])
        most = -optima_of(space, inside, -on_sink[..., None, :], 0 * moved).bounds[..., 0]
        sums = (inside * on_sink).sum(-1), (lower * on_sink).sum(-1)
        bounds = torch.stack([mass, torch.minimum(rounded, mass), *sums, most])
        columns[:, :, some] = bounds.unflatten(1, (-1, len(some)))
    listed = dict(zip(names, columns.tolist(), strict=True))
    table = pl.DataFrame({"head": proven, "query": [queries] * len(proven), **listed})
    return table.explode("query", *listed).to_dicts()
