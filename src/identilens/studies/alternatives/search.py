"""The alternatives of one head on one text, each with what is known about it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import IdentilensError
from identilens.measures.attention.logits import least_logit_rank
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.coordinates import QueriesAndKeys
from identilens.measures.attention.realisable.softmax_map import (
    SoftmaxMap,
    head_formula,
    realisable_dimension,
    softmax_map,
)
from identilens.measures.attention.samplers import far_alternatives, sample_alternatives
from identilens.models.heads import Head


@dataclass(frozen=True)
class Found:
    """One alternative, or the reason why there is none.

    Attributes:
        name: Which one.
        weights: A', None where none was found.
        queries: Q' that produce it, where they are known.
        keys: K', likewise.
        dimension: Local dimension of realisable alternatives, where it was counted.
        formula: What the generic formula gives for it.
        note: What a reader must know.
        answer: Of one that keeps the model's answer: what is known of that, by column of the table.
    """

    name: str
    weights: Float[Tensor, "query key"] | None
    queries: Float[Tensor, "query r"] | None = None
    keys: Float[Tensor, "key r"] | None = None
    dimension: int | None = None
    formula: int | None = None
    note: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is kept of it, by name."""
        tensors = {"alternative": self.weights, "queries": self.queries, "keys": self.keys}
        return {
            f"{name}_{self.name}": tensor for name, tensor in tensors.items() if tensor is not None
        }


def logit_rank(head: Head, weights: Float[Tensor, "query key"] | None) -> int | None:
    """Return the least rank of logits behind a map; None where hidden keys or zeros leave it open."""
    known = head.rows is None and head.visible is None and head.bias is None
    if weights is None or not known or weights.min() <= 0:
        return None
    return int(least_logit_rank(weights))


def alternatives_of(head: Head, starts: int, generator: torch.Generator) -> Iterator[Found]:
    """Yield the alternatives of a head's weights one by one."""
    A, T, visible = head.attention, head.projected, head.visible
    [drawn] = sample_alternatives(A, T, 1, method="uniform", visible=visible, generator=generator)
    yield Found("sampled", drawn)
    yield Found("far", far_alternatives(A, T, visible=visible, starts=starts, generator=generator))


def realisable(
    heads: Sequence[Head], number: int, distance: float, generator: torch.Generator
) -> Found:
    """Return an alternative that other queries and keys give, of one of the heads that share their keys.

    All of them take the new keys, and keep their outputs.
    """
    none, head = Found("realisable", None), heads[number]
    if (
        not head.follows_logits
        or head.softcap is not None
        or (head.bias is not None and head.site.route)
    ):
        return replace(none, note="the weights are not softmax(s Q Kᵀ + bias)")
    softmax = shared_map(heads, number)
    none = replace(none, formula=head_formula(softmax))
    notes = []
    try:
        count = realisable_dimension(softmax)
        none = replace(none, dimension=count.dimension)
        if not count.dimension:
            notes.append("no realisable alternative lies near: the local dimension is 0")
        if not count.regular:
            notes.append("the dimension is one to first order only: Q and K are not generic")
    except IdentilensError as error:
        notes.append(f"the dimension was not counted: {error}")
    if none.dimension == 0:
        return replace(none, note="; ".join(notes))
    try:
        walked = realisable_alternative(softmax, distance=distance, generator=generator)
    except IdentilensError as error:
        return replace(none, note=str(error))
    if len(heads) > 1:
        notes.append(
            f"its keys serve {len(heads)} query heads: all of them take new ones, and each keeps its output"
        )
    if not walked.reached:
        notes.append(f"stopped at {walked.distance:.3f} of {distance:g} after {walked.steps} steps")
    queries, keys = softmax.coordinates.split(walked.point)
    return replace(
        none,
        weights=walked.weights[softmax.rows],
        queries=queries[softmax.rows],
        keys=keys,
        note="; ".join(notes),
    )


def shared_map(heads: Sequence[Head], number: int) -> SoftmaxMap:
    """Return the attention of heads that share their keys as a function of all their queries and these keys."""
    maps = [
        softmax_map(head.queries, head.keys, head.projected, head.scaling, head.visible, head.bias)
        for head in heads
    ]
    n, biases = len(heads[0].queries), [head.bias for head in heads if head.bias is not None]
    vectors = torch.cat([*(head.queries for head in heads), heads[0].keys]).double()
    coordinates = QueriesAndKeys(
        vectors.flatten(),
        n * len(heads),
        heads[0].d_k,
        heads[0].scaling,
        torch.cat(biases).double() if biases else None,
    )
    return SoftmaxMap(
        coordinates,
        torch.cat([part.visible for part in maps]),
        sum((part.kept for part in maps), ()),
        slice(n * number, n * (number + 1)),
    )
