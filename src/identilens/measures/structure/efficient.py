"""Naim & Asher's projection of attention weights, and the relations of weights (structure2025, II)."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import ProjectedValues, projected

_ROUNDING = 1e-9

Relation = Literal["output", "row_sums", "simplex"]


@dataclass(frozen=True)
class EfficientAttention:
    """Weights projected on Ker([T, 1])^⊥; tensors have one entry per head.

    Attributes:
        efficient: The projection: same head output, same row sums, entries of any sign.
        negative: Share of entries below zero, beyond rounding. Above 0, the rows are not distributions.
        least: The smallest entry.
        row_sum_error: Largest |row sum of the projection − row sum of the weights|.
    """

    efficient: Float[Tensor, "*batch query key"]
    negative: Float[Tensor, "*batch"]
    least: Float[Tensor, "*batch"]
    row_sum_error: Float[Tensor, "*batch"]


def efficient_attention(
    weights: Float[Tensor, "*batch query key"],
    values: Float[Tensor, "*batch key d_v"] | ProjectedValues,
) -> EfficientAttention:
    """Return attention weights projected on Ker([T, 1])^⊥ (Naim & Asher 2024; structure2025, II.A).

    A row a becomes a P, with P the orthogonal projector on the columns of [T, 1]. Because P [T, 1] = [T, 1], the output
    a T and the sum of the row do not change. Two sets of weights with the same output and sums have the same
    projection. Entries can become negative; ``negative`` is their share. Every key is visible to every query.
    ``values`` is T, or its factors. In float64; cost O(n² d_v) per head.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import efficient_attention
        >>> found = efficient_attention(torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([[1.0], [1.0], [0.0]]))
        >>> found.efficient
        tensor([[0.2500, 0.2500, 0.5000]], dtype=torch.float64)
    """
    A = weights.double()
    kept = projected(values).simplex_space().kept
    efficient = A @ kept @ kept.mT
    return EfficientAttention(
        efficient,
        (efficient < -_ROUNDING).double().mean((-2, -1)),
        efficient.amin((-2, -1)),
        (efficient.sum(-1) - A.sum(-1)).abs().amax(-1),
    )


def equivalent(
    first: Float[Tensor, "query key"],
    second: Float[Tensor, "query key"],
    values: Float[Tensor, "key d_v"] | ProjectedValues,
    *,
    relation: Relation = "output",
    tolerance: float = 1e-6,
) -> bool:
    """Return whether two sets of weights are equivalent for one head on one text (structure2025, II.B).

    ``output``: A₁ T = A₂ T. ``row_sums``: also A₁ 1 = A₂ 1 = 1. ``simplex``: also A₁ >= 0, A₂ >= 0. Each relation is
    finer than the previous one. Outputs are compared row by row, in units of T's longest row; ``values`` is T, or its
    factors.

    With tolerance 0 and exact arithmetic these are equivalence relations: the first on all matrices, the others on
    matrices whose rows sum to 1 (and are non-negative), because other matrices are not equivalent to themselves. With a
    tolerance they are still reflexive and symmetric; for transitivity the tolerances add up.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import equivalent
        >>> values = torch.tensor([[1.0], [1.0], [0.0]])
        >>> first, second = torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([[0.4, 0.1, 0.5]])
        >>> equivalent(first, second, values), equivalent(first, first.flip(-1), values)
        (True, False)
    """
    compact = projected(values).compact
    unit = torch.linalg.vector_norm(compact, dim=-1).max()
    pair = torch.stack([first, second]).double()
    # A difference has the same length in the compact basis as in the coordinates of T.
    apart = torch.linalg.vector_norm((pair[0] - pair[1]) @ compact, dim=-1).max()
    same = apart <= tolerance * unit
    if relation != "output":
        same &= ((pair.sum(-1) - 1).abs() <= tolerance).all()
    if relation == "simplex":
        same &= (pair >= -tolerance).all()
    return bool(same)
