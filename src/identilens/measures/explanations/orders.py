"""Perturbation curves: parts are removed in an explanation's order; their area, its best and worst."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.measures.explanations.agreement import TIE

Effect = Callable[[Bool[Tensor, "set part"]], Float[Tensor, " set"]]
"""Gives how much the output changes when each of some sets of parts is removed."""


@dataclass(frozen=True)
class OrderBounds:
    """The least and the largest area of the orders that were searched."""

    lowest: float
    highest: float


def removal_order(
    scores: Float[Tensor, "*row part"], generator: torch.Generator | None = None
) -> Int[Tensor, "*row part"]:
    """Return the parts, largest score first; scores within 1e-6 of the row's largest are in random order.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations.orders import removal_order
        >>> removal_order(torch.tensor([0.1, 0.7, 0.2]))
        tensor([1, 2, 0])
    """
    largest = scores.double().abs().amax(-1, keepdim=True)
    lowered = torch.rand(scores.shape, generator=generator).to(scores.device) * TIE
    return (scores.double() / torch.where(largest > 0, largest, 1.0) - lowered).argsort(
        -1, descending=True
    )


def removal_sets(
    order: Int[Tensor, "*row part"], sizes: Sequence[int]
) -> Bool[Tensor, "*row size part"]:
    """Return, for each size k, which parts are the first k of an order.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations.orders import removal_sets
        >>> removal_sets(torch.tensor([1, 2, 0]), [1, 2])
        tensor([[False,  True, False],
                [False,  True,  True]])
    """
    ranks = order.argsort(-1)
    return ranks[..., None, :] < torch.tensor(list(sizes), device=order.device)[:, None]


def normalised_area(
    areas: Float[Tensor, "*row"], bounds: OrderBounds, *, floor: float = 0.0
) -> Float[Tensor, "*row"]:
    """Return (AOPC − lowest) / (highest − lowest), in [0, 1]: NAOPC of Edin et al. 2025 (arXiv 2408.08137).

    AOPC is the area over the perturbation curve, the mean effect over the sizes (Samek et al. 2017).

    Areas of different inputs and models are not comparable; their places between the worst and the best order of the
    same input are. An area beyond the bounds (which a search may not reach) extends them: the value is 0 or 1. If all
    orders have one area, up to the ``floor`` of the effects' noise, NaN.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import normalised_area
        >>> from identilens.measures.explanations.orders import OrderBounds
        >>> normalised_area(torch.tensor([0.1, 0.4]), OrderBounds(0.0, 0.5))
        tensor([0.2000, 0.8000])
    """
    reach = bounds.highest - bounds.lowest
    if not reach > floor:
        return torch.full_like(areas, torch.nan)
    return ((areas - bounds.lowest) / reach).clamp(0, 1)


def order_bounds(
    effect: Effect,
    singles: Float[Tensor, " part"],
    sizes: Sequence[int],
    *,
    pool: int | None = None,
    known: Float[Tensor, " order"] | None = None,
) -> OrderBounds:
    """Return the least and the largest area of all orders that a greedy search finds (Edin et al. 2025, section 4).

    To each set, the parts of the pool with the best effects beside it are added, as many as the next of the growing
    sizes has more. The pool has the ``pool`` parts of largest (or least) single effect, at least as many as the largest
    size; all by default. Areas of other orders that are ``known`` count, too. About 2 · pool · len(sizes) effects.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import order_bounds
        >>> parts = torch.tensor([1.0, 2.0, 3.0])
        >>> order_bounds(lambda sets: sets.float() @ parts, parts, [1, 2])
        OrderBounds(lowest=2.0, highest=4.0)
    """
    most = len(singles) if pool is None else min(pool, len(singles))
    ends = [] if known is None else known.tolist()
    for sign in (-1.0, 1.0):
        chosen = (sign * singles).topk(most).indices
        held, total = torch.zeros_like(singles, dtype=torch.bool), 0.0
        for size in sizes:
            free = chosen[~held[chosen]]
            singly = held.repeat(len(free), 1)
            singly[torch.arange(len(free)), free] = True
            best = free[(sign * effect(singly)).argsort(descending=True, stable=True)]
            held = held.index_fill(0, best[: size - int(held.sum())], True)
            total += effect(held[None]).item()
        ends.append(total / len(sizes))
    return OrderBounds(min(ends), max(ends))
