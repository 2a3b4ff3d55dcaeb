"""The space of a row's alternatives on the simplex, LN([T, 1]), and its complement, which must not change."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from identilens.linalg.decompositions import singular_values, svd
from identilens.linalg.factor import (
    certified_full_rank,
    largest_square,
    smaller_gram,
)
from identilens.linalg.threads import one_thread

ROUNDING = 1e-12
"""Entries of an orthonormal basis below this are rounding: the weight is the same in every alternative."""


@dataclass(frozen=True)
class SimplexSpace:
    """The directions in which a row can change without changing its output and sum, and the other directions.

    Those of several heads may stand in one, with an axis of heads before the others; a head of lower rank than another
    has columns of zeros then.

    Attributes:
        kept: B, orthonormal columns that span [T, 1] on the visible keys; zero rows on hidden keys.
            The first column is constant.
        scales: Size of the change of T's rows' mixture for a unit change of xᵀ B along each column, infinite for the
            first: the sum of a row never changes.
        visible: True on the keys that the row sees.
        tolerance: Share of σ_max(T) below which a direction of T counts as zero.
        basis: Columns that span what B spans, on the visible keys, which `free` completes.
        blocks: Number of the row that each key belongs to, where several rows beside each other change together.
    """

    kept: Float[Tensor, "*head key rho"]
    scales: Float[Tensor, "*head rho"]
    visible: Bool[Tensor, " key"]
    tolerance: float
    basis: Float[Tensor, "*head seen rho"] | None = None
    blocks: Int[Tensor, " key"] | None = None

    @cached_property
    def seen(self) -> Float[Tensor, "*head seen rho"]:
        """B on the visible keys."""
        return self.kept[..., self.visible, :]

    @property
    def rank(self) -> int:
        """Numerical rank of [T, 1] on the visible keys; the largest of several heads."""
        return self.kept.shape[-1]

    @property
    def nullity(self) -> int:
        """Simplex nullity: dimension of LN([T, 1]) on the visible keys; 0 of several rows together, see `free`."""
        return 0 if self.basis is None else self.basis.shape[-2] - self.rank

    @cached_property
    def free(self) -> Float[Tensor, "key nullity"]:
        """N, orthonormal basis of LN([T, 1]) on the visible keys, zero rows elsewhere; without columns of several rows.

        As large as the square of the keys, and made when it is first asked for.
        """
        if self.basis is None:
            return self.kept[:, :0]
        with one_thread():
            free = torch.linalg.qr(self.basis, mode="complete").Q[:, self.rank :]
        return _spread(
            free * (torch.linalg.vector_norm(free, dim=1) > ROUNDING)[:, None], self.visible
        )

    @property
    def movable(self) -> Bool[Tensor, "*head key"]:
        """True on the keys that take part in some alternative; the others keep their weight."""
        if self.blocks is not None:
            return torch.zeros_like(self.visible)
        # The length of a row of N is that of a unit vector outside B, which is computed twice to lose no digit.
        outside = torch.eye(self.kept.shape[-2]).to(self.kept) - self.kept @ self.kept.mT
        outside = outside - outside @ self.kept @ self.kept.mT
        return self.visible & (torch.linalg.vector_norm(outside, dim=-1) > ROUNDING)


def centred_rank(compact: Float[Tensor, "*batch n r"], tolerance: float) -> Int[Tensor, "*batch"]:
    """Return rank([T, 1]) − 1. Every rank of [T, 1] in this package is counted by this rule.

    It is the number of singular values of T minus its column means that exceed the tolerance times σ_max(T). So sums
    are exact and the units of T do not matter (Brunner et al. 2020, 3.3; Bhardwaj et al. 2021, P2 and P3). It is
    rank(T) or one less: one less when a change of T within the tolerance brings the ones into its column space.
    """
    centred = compact - compact.mean(-2, keepdim=True)
    certified = certified_full_rank(
        smaller_gram(centred), tolerance, largest_square(smaller_gram(compact))
    )
    # Centred rows are dependent: at most n − 1 are independent.
    rank = torch.full_like(certified, min(compact.shape[-2:]), dtype=torch.int64)
    if not certified.all():
        rest = centred[~certified]
        limit = tolerance * torch.linalg.matrix_norm(compact[~certified], 2)
        rank[~certified] = (singular_values(rest) > limit[..., None]).sum(-1)
    return rank


def ones_outside(basis: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch"]:
    """Return ‖(I − U Uᵀ) 1‖²: the squared length of the ones outside the space of orthonormal columns."""
    return (1 - (basis.sum(-2, keepdim=True) @ basis.mT)[..., 0, :]).square().sum(-1)


def least_outside(
    sizes: Int[Tensor, " row"], tolerance: Callable[[Any], Any]
) -> Float[Tensor, " row"]:
    """Return up to which ‖(I − P_i) 1‖² the ones of a row count as inside: a share of its size within the tolerance.

    Where they do, `centred_rank` does not count the ones either. `centred_rank` may leave out the ones in more rows,
    but it needs a decomposition per row.
    """
    return tolerance(sizes).square() * sizes


def _spread(
    columns: Float[Tensor, "*head seen k"], visible: Bool[Tensor, " key"]
) -> Float[Tensor, "*head key k"]:
    everywhere = columns.new_zeros(*columns.shape[:-2], len(visible), columns.shape[-1])
    return everywhere.masked_scatter(visible[:, None], columns)


@one_thread()
def row_space(
    compact: Float[Tensor, "*head key r"], visible: Bool[Tensor, " key"], tolerance: float
) -> SimplexSpace:
    """Return the space of a row of one head, or of each of several: its output and its sum must not change.

    ``compact`` is T, float64; at least one key is visible. The rank is by `centred_rank`. On one thread. Cost O(n r²).
    """
    seen = compact[..., visible, :]
    left, sigma, _ = svd(seen - seen.mean(-2, keepdim=True))
    kept = sigma > tolerance * singular_values(seen)[..., :1]
    kept = kept[..., : int(kept.sum(-1).max())]
    constant = torch.full_like(seen[..., :1], seen.shape[-2] ** -0.5)
    basis = torch.cat([constant, left[..., : kept.shape[-1]] * kept[..., None, :]], -1)
    # QR once more: columns are orthogonal to the constant only up to rounding relative to their singular value.
    columns = torch.linalg.qr(basis).Q * (basis != 0).any(-2, keepdim=True)
    scales = sigma[..., : kept.shape[-1]].masked_fill(~kept, torch.inf)
    scales = pad(scales, (1, 0), value=torch.inf)
    return SimplexSpace(_spread(columns, visible), scales, visible, tolerance, basis)


@one_thread()
def joint_space(
    compact: Float[Tensor, "head key d"], visible: Bool[Tensor, " key"], tolerance: float
) -> SimplexSpace:
    """Return the space of the rows of one or several heads, one after another, whose outputs' sum must not change.

    ``compact`` are the heads' T in coordinates that they share, float64; at least one key is visible. The sum of every
    row stays. The space of several has no ``free``: it is for programs in which the sum of the outputs may change a
    little. On one thread.
    """
    if len(compact) == 1:
        return row_space(compact[0], visible, tolerance)
    seen = compact[:, visible]
    heads, keys, _ = seen.shape
    left, sigma, _ = svd((seen - seen.mean(1, keepdim=True)).flatten(0, 1))
    kept = sigma > tolerance * singular_values(seen.flatten(0, 1))[:1]
    ones = torch.eye(heads).to(left).repeat_interleave(keys, 0) / keys**0.5
    everywhere = visible.repeat(heads)
    columns = _spread(torch.linalg.qr(torch.cat([ones, left[:, kept]], 1)).Q, everywhere)
    scales = pad(sigma[kept], (heads, 0), value=torch.inf)
    blocks = torch.arange(heads, device=seen.device).repeat_interleave(len(visible))
    return SimplexSpace(columns, scales, everywhere, tolerance, blocks=blocks)
