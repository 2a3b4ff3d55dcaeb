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
from identilens.measures.attention.logits import least_logit_rank, uncapped_logits
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.dimension import (
    RealisableDimension,
    realisable_dimension,
)
from identilens.measures.attention.samplers import far_alternatives
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.projections import remade_projections
from identilens.models.reading import read_head
from identilens.models.substitution import ModelRun


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


def computed(lens: Lens, item: Item, head: Head) -> tuple[Tensor, ModelRun]:
    """Return the weights that the model computes in a head, and what it gives, with the parameters it has now."""
    weights = read_head(lens, item, *head.address).attention
    return weights, lens.substitute({}, item)


def by_parameters(
    lens: Lens, item: Item, head: Head, alternative: Found
) -> tuple[Found, ModelRun | None]:
    """Return the weights that the model computes, and what it gives, with parameters that make the wanted Q' and K'.

    The model's parameters are as before afterwards.
    """
    if alternative.queries is None or alternative.keys is None:
        return Found("parameters", None, note="no queries and keys to make"), None
    try:
        with remade_projections(lens, item, head, alternative.queries, alternative.keys) as moved:
            weights, run = computed(lens, item, head)
    except IdentilensError as error:
        return Found("parameters", None, note=str(error)), None
    return Found(
        "parameters",
        weights,
        dimension=alternative.dimension,
        formula=alternative.formula,
        moved=moved,
    ), run


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
    if head.softcap is not None:
        return _capped(head, head.softcap, alternative.weights)
    if not head.follows_logits or not head.bias_fixed:
        return (
            "the weights are not softmax(s Q Kᵀ + bias): whether queries and keys give it is open"
        )
    if head.group == 1:
        return f"queries and keys of size {_compared(alternative.needed_d_k, head)}"
    # Every head of the group mixes the same V: a basis of its columns less their mean is the K' of all of them.
    size = ProjectedValues.of(head.values).simplex_space().rank - 1
    return (
        f"queries and keys of size {_compared(size, head)}; the keys serve {head.group} query heads and cannot be "
        "changed for one alone: the same new ones give each of them its maximum-entropy alternative"
    )


def _capped(head: Head, cap: float, weights: Float[Tensor, "query key"]) -> str:
    logits = uncapped_logits(weights, cap, bias=head.bias, visible=head.visible)
    if logits is None:
        apart = f"its logits lie {2 * cap:g} or more apart"
        return f"no queries and keys produce it: {apart}, beyond the soft cap of {cap:g}"
    if head.visible is not None:
        return f"its logits lie within the soft cap of {cap:g}; the rank behind the cap is open where keys are hidden"
    rank = int(torch.linalg.matrix_rank(logits, rtol=head.projected.tolerance))
    if rank <= head.d_k:
        return f"behind the soft cap of {cap:g}, queries and keys of size {_compared(rank, head)}"
    return (
        f"behind the soft cap of {cap:g} its logits have rank {rank}, more than the head has (d_k = {head.d_k}), "
        "unless other constants in the rows lower it"
    )


def _compared(size: int, head: Head) -> str:
    fits = "the head's own size suffices" if size <= head.d_k else "more than the head has"
    return f"{size} produce it ({fits}: d_k = {head.d_k})"


def realisable(head: Head, distance: float, generator: torch.Generator) -> Found:
    """Return an alternative that other queries and keys give, to go so far, or the reason why there is none.

    Raises:
        InputError: For a text too long for the walk.
    """
    if head.softcap is not None or not head.follows_logits:
        capped = (
            "soft-capped logits"
            if head.softcap is not None
            else "an attention sink or logits that are changed"
        )
        return Found(
            "realisable", None, note=f"the weights are not softmax(s Q Kᵀ + bias): {capped}"
        )
    if not head.bias_fixed:
        note = "its logits have relative terms that other queries and keys would change too (s Q Kᵀ + bias(Q, K))"
        return Found("realisable", None, note=note)
    tensors = (head.queries.double(), head.keys.double(), head.projected)
    bias = None if head.bias is None else head.bias.double()
    options = {"scaling": head.scaling, "visible": head.visible, "bias": bias}
    counted = realisable_dimension(*tensors, **options)
    if not counted.dimension:
        return Found(
            "realisable", None, dimension=0, formula=counted.formula, note=none_near(counted)
        )
    alternative = realisable_alternative(
        *tensors, distance=distance, generator=generator, **options
    )
    notes = (
        []
        if alternative.reached
        else [
            f"stopped at {alternative.distance:.3f} of {distance:g} after {alternative.steps} steps"
        ]
    )
    notes += dimension_notes(counted)
    dimensions = counted.dimension, counted.formula
    return Found(
        "realisable",
        alternative.weights,
        alternative.queries,
        alternative.keys,
        *dimensions,
        "; ".join(notes),
    )


def dimension_notes(counted: RealisableDimension) -> Iterator[str]:
    """Yield what a reader of a dimension must know."""
    if counted.formula is not None and counted.formula != counted.dimension:
        yield f"the dimension differs from the generic {counted.formula}"
    if not counted.regular:
        yield "the dimension is one to first order only: the queries and keys, or what makes them, are not generic"


def none_near(counted: RealisableDimension) -> str:
    """Return why a head has no realisable alternative near, if its dimension is 0."""
    first = "" if counted.regular else ", to first order"
    return (
        f"no realisable alternative lies near{first}: the local dimension is 0. Of the {counted.parameters} "
        f"directions in which the queries and keys, or what makes them, can move, {counted.gauge} change no weight, "
        f"and every combination of the other {counted.weights_rank} changes an output"
    )
