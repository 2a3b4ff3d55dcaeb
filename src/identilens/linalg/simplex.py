"""The space of a row's alternatives on the simplex, LN([T, 1]), and the complement that the row must keep."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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


def space_on(compact: Float[Tensor, "key r"], visible: Bool[Tensor, " key"], tolerance: float) -> SimplexSpace:
    """Return the space of a row that sees some keys.

    rank([T, 1]) = 1 + rank of T with its column means taken off (over the visible keys), so that the
    sum of the weights is kept exactly, however T is scaled (Brunner et al. 2020, Eq. 7; Bhardwaj et al.
    2021, P2 and P3). ``compact`` is F, float64; at least one key is visible. Cost O(n² r).
    """
    rows = compact[visible]
    left, sigma, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    left = left[:, sigma > tolerance * torch.linalg.matrix_norm(rows, 2)]
    constant = torch.full_like(rows[:, :1], len(rows) ** -0.5)
    # QR once more: the columns of `left` are off 1 only to rounding relative to their singular value.
    full = torch.linalg.qr(torch.cat([constant, left], 1), mode="complete").Q
    rank = 1 + left.shape[1]
    free = full[:, rank:]
    free = free * (torch.linalg.vector_norm(free, dim=1, keepdim=True) > ROUNDING)
    return SimplexSpace(_spread(full[:, :rank], visible), _spread(free, visible), visible, tolerance)


def _spread(columns: Float[Tensor, "seen k"], visible: Bool[Tensor, " key"]) -> Float[Tensor, "key k"]:
    return columns.new_zeros((len(visible), columns.shape[1])).masked_scatter(visible[:, None], columns)
