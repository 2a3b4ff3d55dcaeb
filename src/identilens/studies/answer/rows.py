"""The rows of an answer's tokens: attention by segment, and its ends over all alternatives for drawn rows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.claims import Claim, difference, segment
from identilens.models.chats import REST, SINK, SO_FAR, TEMPLATE
from identilens.models.heads import Head
from identilens.runs.tables import Row
from identilens.studies.certify.rows import functional_ends
from identilens.studies.outcomes import Tolerance, of_head

_STREAM = 0xA75
"""Tells the draw of rows apart from other uses of a run's seed."""

_NAMED = 3
"""Segments that are named at most where each is compared with every other one but the sink."""

Heads = Mapping[int, Sequence[int]]
"""Heads by the number of their attention in call order."""


def segment_claims(segments: Sequence[str]) -> dict[tuple[str, str | None], Claim]:
    """Return claims on the attention to each segment, and on that to a named one less another, by both names.

    The last segment is the sink: one more key than there are tokens.
    """
    keys = [*segments, SINK]
    names = [*dict.fromkeys(keys)]
    claims: dict[tuple[str, str | None], Claim] = {
        (name, None): segment(name, [at for at, own in enumerate(keys) if own == name])
        for name in names
    }
    named = [name for name in names if name not in (TEMPLATE, REST, SO_FAR, SINK)]
    if len(named) <= _NAMED:
        for name, other in product(named, names[:-1]):
            if name != other:
                claims[name, other] = difference(claims[name, None], claims[other, None])
    return claims


def segment_masses(
    head: Head, segments: Float[Tensor, "segment key"]
) -> Float[Tensor, "token segment"]:
    """Return the attention of each row of a head to each segment; the last one is what a sink takes."""
    weights = head.attention
    rest = (1 - weights.sum(-1, keepdim=True)).clamp_min(0.0) * head.sink
    return torch.cat([weights, rest], -1) @ segments.mT


def segment_ends(
    head: Head,
    token: int,
    claims: Mapping[tuple[str, str | None], Claim],
    costs: Float[Tensor, "functional key"],
    tolerances: Sequence[Tolerance],
) -> Iterator[Row]:
    """Yield value and proven ends of each claim on one row of a head, for each tolerance."""
    weights, T, visible = head.distributions(head.at(token))
    kept = of_head(weights[token], T, None if visible is None else visible[token])
    place = {"token": token, "layer": head.layer, "head": head.head}
    for tolerance in tolerances:
        solver = kept.solver(kept.allowed(tolerance))
        ends = functional_ends(solver, costs[:, solver.keys]).T.tolist()
        for (name, other), (mass, lo, hi) in zip(claims, ends, strict=True):
            own = {"tolerance": tolerance.name, "segment": name, "other": other}
            yield {**place, **own, "mass": mass, "lo": lo, "hi": hi}


def drawn_rows(
    heads: Heads, tokens: int, count: int, seed: int, text: int
) -> dict[int, list[tuple[int, int]]]:
    """Return rows of attention, head and token by attention in call order: so many of each token, drawn from all heads.

    The heads stand in a random order in which layers take turns. The tokens take them one after another, round and
    round: each row is drawn with the same probability, and layers with as many heads equally often (systematic
    sampling). They depend on nothing but the seed and the place, so that a resumed run draws the same.
    """
    generator = np.random.default_rng([_STREAM, seed, text])
    own = {number: generator.permutation(heads[number]).tolist() for number in heads}
    order = [
        (number, own[number][turn])
        for turn in range(max(map(len, own.values())))
        for number in generator.permutation(list(heads)).tolist()
        if turn < len(own[number])
    ]
    count = min(count, len(order))
    # Layers with fewer heads leave the later turns, so that these begin at a random place.
    start = int(generator.integers(len(order))) if len({*map(len, own.values())}) > 1 else 0
    drawn: dict[int, list[tuple[int, int]]] = {number: [] for number in heads}
    for at in range(tokens * count):
        number, head = order[(start + at) % len(order)]
        drawn[number].append((head, at // count))
    return drawn
