"""Effective and null attention (Brunner et al. 2020, Eq. 8 and 9), for every kind of mask."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import compact_values, relative_tolerance
from identilens.measures.attention.arguments import check_finite, check_mask, check_projection, check_width
from identilens.measures.attention.causal_rows import CausalRows
from identilens.measures.attention.full_rows import FullRows
from identilens.measures.attention.irregular_rows import IrregularRows

Visible = Bool[Tensor, "query key"] | Literal["causal"] | None


@dataclass(frozen=True)
class EffectiveAttention:
    """Weights split into the part that the head output depends on and the part without effect on it.

    Attributes:
        effective: A^⊥, the minimum-norm weights with the same head output; rows need not sum to 1.
        null: A^∥ = weights - effective, in LN(T); None when no weights were given.
        rank: Of T, one a head; for masked rows one a query, of T restricted to its visible keys.
        nullity: Visible keys less rank, shaped like ``rank``.
        tolerance: Relative threshold: singular values at most this share of the largest count as zero.
    """

    effective: Float[Tensor, "*batch query key"]
    null: Float[Tensor, "*batch query key"] | None
    rank: Int[Tensor, "..."]
    nullity: Int[Tensor, "..."]
    tolerance: float


RowProjector = FullRows | CausalRows | IrregularRows
"""Projects each query's weights on the column space of T restricted to the keys it sees."""


def row_projector(compact: Float[Tensor, "head key r"], d_model: int, queries: int, visible: Visible) -> RowProjector:
    """Return the projector that fits the mask: shared by all rows, nested for causal ones, or row by row."""
    if visible is None:
        return FullRows(compact, d_model, queries)
    if isinstance(visible, str):
        return CausalRows(compact, d_model)
    if bool(visible.all()):
        return FullRows(compact, d_model, queries)
    if visible.shape[0] == visible.shape[1] and torch.equal(visible, torch.ones_like(visible).tril()):
        return CausalRows(compact, d_model)
    return IrregularRows(compact, d_model, visible)


def effective_attention(
    values: Float[Tensor, "*batch key d_v"],
    *,
    weights: Float[Tensor, "*batch query key"] | None = None,
    head_output: Float[Tensor, "*batch query d_v"] | None = None,
    output_projection: Float[Tensor, "*#batch d_v d_model"] | None = None,
    visible: Visible = None,
) -> EffectiveAttention:
    """Return the part of attention weights that the head output depends on.

    effective = A - Projection_LN(T) A (Brunner Eq. 9) = A P with P the orthogonal projector on
    col(T) ⊂ R^n. Because P T = T it is also the minimum-norm solution (A T) T^+, so the head output is
    enough and weights are not needed. For a query that sees only the keys S, T is restricted to the rows S
    and the weights elsewhere are 0.

    From weights the result is as exact as their precision (they are projected by an orthonormal basis).
    From a head output in float32, rounding is amplified by the condition number of T; pass float64
    outputs, or weights, where that matters.

    Args:
        values: V, value bias included; or T itself without a projection.
        weights: A after softmax. One of ``weights`` and ``head_output`` is needed.
        head_output: A V (or A T without a projection).
        output_projection: W_O, one head's block, bias left out.
        visible: Boolean mask (query, key), ``"causal"``, or None when every query sees every key.

    Returns:
        In the precision of the input, at least float32. Cost O(n² d_v) a head; a causal head adds
        O(n d_v²), other masks O(n m d_v²) with m the keys that 64 neighbouring rows see.

    Raises:
        InputError: For shapes that do not fit, or neither weights nor head output.
        NumericalError: For NaN or infinite entries.
    """
    d_model = check_projection(values, output_projection)
    given = weights if weights is not None else head_output
    if given is None:
        raise InputError("effective_attention needs weights or head_output; got neither. Pass one of them.")
    keys, queries = values.shape[-2], given.shape[-2]
    check_width("weights", weights, values, keys)
    check_width("head_output", head_output, values, values.shape[-1])
    check_mask(visible, queries, keys)
    check_finite(values=values, weights=weights, head_output=head_output, output_projection=output_projection)
    batch = values.shape[:-2]
    compact = compact_values(values, output_projection)
    projector = row_projector(compact.reshape(-1, *compact.shape[-2:]), d_model, queries, visible)
    dtype = torch.promote_types(torch.promote_types(values.dtype, given.dtype), torch.float32)
    if weights is not None:
        flat = weights.to(dtype).reshape(-1, queries, keys)
        effective = projector.effective(slice(None), flat)
    else:
        outputs = compact_values(given, output_projection)
        effective = projector.from_outputs(slice(None), outputs.reshape(-1, *outputs.shape[-2:]))
    effective = effective.to(dtype).reshape(*batch, queries, keys)
    one_rank = visible is None
    rank = projector.rank.reshape(batch) if one_rank else projector.row_ranks().reshape(*batch, queries)
    return EffectiveAttention(
        effective,
        None if weights is None else weights.to(dtype) - effective,
        rank,
        (keys if one_rank else projector.row_sizes()) - rank,
        relative_tolerance(keys, d_model),
    )
