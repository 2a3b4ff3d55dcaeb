"""Effective and null attention (Brunner et al. 2020, Eq. 8 and 9), for every kind of mask."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import ProjectedValues, Visible, projected
from identilens.linalg.checks import check_finite, check_mask, check_values
from identilens.measures.attention.checks import without_hidden


@dataclass(frozen=True)
class EffectiveAttention:
    """Weights split into the part that the head output depends on and the part without effect on it.

    Attributes:
        effective: A^⊥, the minimum-norm weights with the same head output; rows need not sum to 1.
        weights: A, as given.
        rank: Rank of T, one per head. For masked rows one per query: the rank of T restricted to its visible keys.
        nullity: Number of visible keys minus rank, with the shape of ``rank``.
        tolerance: Relative threshold: singular values at most this share of the largest count as zero.
    """

    effective: Float[Tensor, "*batch query key"]
    weights: Float[Tensor, "*batch query key"]
    rank: Int[Tensor, "..."]
    nullity: Int[Tensor, "..."]
    tolerance: float

    @cached_property
    def null(self) -> Float[Tensor, "*batch query key"]:
        """A^∥ = weights - effective, in LN(T)."""
        return self.weights - self.effective


def effective_attention(
    values: Float[Tensor, "*batch key d_v"] | ProjectedValues,
    *,
    weights: Float[Tensor, "*batch query key"],
    output_projection: Float[Tensor, "*#batch d_v d_model"] | None = None,
    visible: Visible = None,
) -> EffectiveAttention:
    """Return the part of attention weights that the head output depends on.

    effective = A - Projection_LN(T) A (Brunner Eq. 9) = A P with P the orthogonal projector on col(T) ⊂ R^n. Because
    P T = T it is also the minimum-norm solution (A T) T^+: the head output determines it. For a query that sees only
    the keys S, T is restricted to the rows S, and effective attention is 0 elsewhere.
    Weights on other keys must be 0.

    Args:
        values: V, value bias included; or T itself without a projection; or both as `ProjectedValues`.
        weights: A after softmax, zero on hidden keys.
        output_projection: W_O, one head's block, without its bias.
        visible: Boolean mask (query, key), or None when every query sees every key.

    Returns:
        The result in the precision of the input, at least float32. Cost O(n² d_v) per head; a causal head adds
        O(n d_v²), other masks O(n m d_v²) with m the keys that 64 neighbouring rows see.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import effective_attention
        >>> weights, values = torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([[1.0], [1.0], [0.0]])
        >>> found = effective_attention(values, weights=weights)
        >>> found.effective
        tensor([[0.2500, 0.2500, 0.0000]])
        >>> bool(torch.allclose(found.effective @ values, weights @ values)), found.nullity
        (True, tensor(2))

    Raises:
        InputError: For shapes that do not fit, or weight on a hidden key.
        NumericalError: For NaN or infinite entries.
    """
    mixed = values.values if isinstance(values, ProjectedValues) else values
    check_values(mixed, output_projection)
    check_finite(weights=weights)
    shape, keys = weights.shape, mixed.shape[-2]
    if len(shape) != mixed.ndim or (shape[:-2], shape[-1]) != (mixed.shape[:-2], keys):
        raise InputError(
            f"weights must be (..., query, {keys}) to fit values of shape {tuple(mixed.shape)}; got {tuple(shape)}. "
            "Repeat grouped values once for each of their heads."
        )
    check_mask(visible, weights.shape[-2], mixed.shape[-2])
    batch, queries = mixed.shape[:-2], weights.shape[-2]
    dtype = torch.promote_types(torch.promote_types(mixed.dtype, weights.dtype), torch.float32)
    weights = without_hidden(weights.to(dtype), visible)
    T = projected(values, output_projection)
    projector, heads = T.projector(queries, visible), math.prod(batch)
    effective = projector.effective(weights.reshape(heads, queries, T.keys))
    effective = effective.to(dtype).reshape(*batch, queries, T.keys)
    if visible is None:
        rank, sizes = projector.rank.reshape(batch), T.keys
    else:
        rank, sizes = projector.row_ranks().reshape(*batch, queries), projector.sizes
    return EffectiveAttention(effective, weights, rank, sizes - rank, T.tolerance)
