"""The alternatives of one head on one text, each with what is known about it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import IdentilensError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.billiard import Walks
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.entropy import EntropyAlternative, maximum_entropy_alternative
from identilens.measures.attention.logits import least_logit_rank
from identilens.measures.attention.samplers import far_alternatives
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
        moved: Of the parameters that were changed to make it, ‖W' − W‖_F / ‖W‖_F by name.
        answer: Of one that keeps the model's answer: what is known of that, by column of the table.
    """

    name: str
    weights: Float[Tensor, "query key"] | None
    queries: Float[Tensor, "query r"] | None = None
    keys: Float[Tensor, "key r"] | None = None
    dimension: int | None = None
    formula: int | None = None
    note: str = ""
    moved: Mapping[str, float] = field(default_factory=dict)
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
    rows = checked_weights(head.attention, head.projected, head.visible)
    walks = Walks(rows, head.projected.simplex_spaces(len(rows), head.visible), generator)
    note = f"not drawn evenly: after {walks.mixing.legs} legs the walks still remembered where they began"
    yield Found("sampled", next(walks.draw(1)), note="" if walks.mixing.settled else note)
    yield Found("far", far_alternatives(A, T, visible=visible, starts=starts, generator=generator))
    yield or_note("maximum_entropy", lambda: _maximum_entropy(head))


def or_note(name: str, search: Callable[[], Found]) -> Found:
    """Return what a search finds, or the reason why it finds nothing."""
    try:
        return search()
    except IdentilensError as error:
        return Found(name, None, note=str(error))


def _maximum_entropy(head: Head) -> Found:
    alternative = maximum_entropy_alternative(
        head.attention, head.projected, visible=head.visible, bias=head.bias
    )
    if head.rows is not None:
        # Keys are those of all rows: what gives some rows would change the others.
        return Found("maximum_entropy", alternative.weights)
    given = head.softcap is None and head.follows_logits and head.bias_fixed
    factors = (alternative.queries, alternative.keys) if given else (None, None)
    return Found(
        "maximum_entropy", alternative.weights, *factors, note=entropy_note(head, alternative)
    )


def entropy_note(head: Head, alternative: EntropyAlternative) -> str:
    """Return whether queries and keys of the head's size give its maximum-entropy alternative."""
    if head.softcap is not None or not head.follows_logits or not head.bias_fixed:
        return (
            "the weights are not softmax(s Q Kᵀ + bias): whether queries and keys give it is open"
        )
    size, shared = alternative.needed_d_k, ""
    if head.group > 1:
        # Every head of the group mixes the same V: a basis of its columns less their mean is the K' of all of them.
        size = ProjectedValues.of(head.values).simplex_space().rank - 1
        shared = (
            f"; the keys serve {head.group} query heads and cannot be changed for one alone: the same new ones give "
            "each of them its maximum-entropy alternative"
        )
    fits = "the head's own size suffices" if size <= head.d_k else "more than the head has"
    return f"queries and keys of size {size} produce it ({fits}: d_k = {head.d_k}){shared}"
