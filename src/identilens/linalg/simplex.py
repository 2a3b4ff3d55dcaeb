"""The space of a row's alternatives on the simplex, LN([T, 1]), and the complement that the row must keep."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import Span, factorise

ROUNDING = 1e-12
"""Entries of an orthonormal basis below this are rounding: the key takes no part in any alternative."""


@dataclass(frozen=True)
class SimplexSpace:
    """What a row may change, and what it must keep.

    Attributes:
        kept: B, orthonormal columns that span [T, 1] on the visible keys; zero rows on hidden keys.
            The first column is constant.
        free: N, orthonormal basis of LN([T, 1]) on the visible keys; zero rows elsewhere.
        visible: True on the keys the row may use.
        tolerance: Share of σ_max(T) below which a direction of T counts as zero.
    """

    kept: Float[Tensor, "key rho"]
    free: Float[Tensor, "key nullity"]
    visible: Bool[Tensor, " key"]
    tolerance: float

    @property
    def rank(self) -> int:
        """Numerical rank of [T, 1] on the visible keys."""
        return self.kept.shape[1]

    @property
    def nullity(self) -> int:
        """Simplex nullity: dimension of LN([T, 1]) on the visible keys."""
        return self.free.shape[1]


def with_constant(span: Span, tolerance: float) -> Span:
    """Return the span of [T, 1] from that of T: the one rule for its rank.

    The first column is constant, so that sums are kept exactly, and the others are U with the column means taken
    off, made orthonormal. All singular values of that matrix are 1 but one, the distance ρ of the column of ones
    from col(T) as a share of its length: rank([T, 1]) is rank(T) + 1 if ρ exceeds the tolerance, else rank(T),
    whatever the units of T (Brunner et al. 2020, 3.3; Bhardwaj et al. 2021, P2 and P3).
    """
    basis = span.basis
    left, sigma, _ = torch.linalg.svd(basis - basis.mean(-2, keepdim=True), full_matrices=False)
    kept = sigma > tolerance
    constant = torch.full_like(basis[..., :1], basis.shape[-2] ** -0.5)
    return Span(torch.cat([constant, left * kept[..., None, :]], -1), 1 + kept.sum(-1))


def ones_outside(span: Span, tolerance: float) -> Float[Tensor, "*batch"]:
    """Return ‖(I − U Uᵀ) 1‖², or 0 where [T, 1] has no more rank than T by the rule of `with_constant`."""
    ones = span.basis.new_ones(span.basis.shape[:-1])
    outside = (ones - span.project(ones[..., None, :])[..., 0, :]).square().sum(-1)
    return torch.where(outside > tolerance**2 * ones.shape[-1], outside, 0.0)


def significant(
    outside: Float[Tensor, "head row"], sizes: Int[Tensor, " row"], tolerance: Callable[[int], float]
) -> Float[Tensor, "head row"]:
    """Return ‖(I − P_i) 1‖² of rows that see so many keys each, by the same rule."""
    least = torch.tensor([tolerance(size) ** 2 * size for size in sizes.tolist()], dtype=outside.dtype)
    return torch.where(outside > least.to(outside.device), outside, 0.0)


def space_on(compact: Float[Tensor, "key r"], visible: Bool[Tensor, " key"], tolerance: float) -> SimplexSpace:
    """Return the space of a row that sees some keys; its rank is that of `with_constant`.

    ``compact`` is F, float64; at least one key is visible. Cost O(n² r).
    """
    span = with_constant(factorise(compact[visible], tolerance), tolerance)
    # QR once more: the columns are off the constant only to rounding relative to their singular value.
    rank = int(span.rank)
    full = torch.linalg.qr(span.basis[:, :rank], mode="complete").Q
    free = full[:, rank:]
    free = free * (torch.linalg.vector_norm(free, dim=1, keepdim=True) > ROUNDING)
    return SimplexSpace(_spread(full[:, :rank], visible), _spread(free, visible), visible, tolerance)


def _spread(columns: Float[Tensor, "seen k"], visible: Bool[Tensor, " key"]) -> Float[Tensor, "key k"]:
    return columns.new_zeros((len(visible), columns.shape[1])).masked_scatter(visible[:, None], columns)
