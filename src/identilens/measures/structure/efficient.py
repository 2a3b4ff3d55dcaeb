"""Naim & Asher's projection of attention weights, their "efficient attention" (structure2025, II.A)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from identilens.linalg import ProjectedValues, projected

_ROUNDING = 1e-9


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
    given = weights.double()
    kept = projected(values).simplex_space().kept
    efficient = given @ kept @ kept.mT
    return EfficientAttention(
        efficient,
        (efficient < -_ROUNDING).double().mean((-2, -1)),
        efficient.amin((-2, -1)),
        (efficient.sum(-1) - given.sum(-1)).abs().amax(-1),
    )
