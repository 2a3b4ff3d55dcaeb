"""The space of a row's alternatives on the simplex, LN([T, 1]), and its complement, which must not change."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.decompositions import singular_values, svd
from identilens.linalg.factor import (
    Span,
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

    kept: Float[Tensor, "key rho"]
    scales: Float[Tensor, " rho"]
    visible: Bool[Tensor, " key"]
    tolerance: float
    basis: Float[Tensor, "seen rho"] | None = None
    blocks: Int[Tensor, " key"] | None = None

    @property
    def rank(self) -> int:
        """Numerical rank of [T, 1] on the visible keys."""
        return self.kept.shape[1]

    @property
    def nullity(self) -> int:
        """Simplex nullity: dimension of LN([T, 1]) on the visible keys; 0 of several rows together, see `free`."""
        return 0 if self.basis is None else len(self.basis) - self.rank

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
    def movable(self) -> Bool[Tensor, " key"]:
        """True on the keys that take part in some alternative; the others keep their weight."""
        if not self.nullity:
            return torch.zeros_like(self.visible)
        # The length of a row of N is that of a unit vector outside B, which is computed twice to lose no digit.
        outside = torch.eye(len(self.kept)).to(self.kept) - self.kept @ self.kept.mT
        outside = outside - outside @ self.kept @ self.kept.mT
        return self.visible & (torch.linalg.vector_norm(outside, dim=1) > ROUNDING)


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


def simplex_span(compact: Float[Tensor, "*batch n r"], tolerance: float) -> Span:
    """Return an orthonormal basis of the columns of [T, 1], the first one constant; its rank is by `centred_rank`."""
    left, sigma, _ = svd(compact - compact.mean(-2, keepdim=True))
    kept = sigma > tolerance * torch.linalg.matrix_norm(compact, 2)[..., None]
    constant = torch.full_like(compact[..., :1], compact.shape[-2] ** -0.5)
    return Span(torch.cat([constant, left * kept[..., None, :]], -1), 1 + kept.sum(-1))


def ones_outside(span: Span) -> Float[Tensor, "*batch"]:
    """Return ‖(I − U Uᵀ) 1‖²: the squared length of the ones outside the space."""
    return (1 - (span.ones @ span.basis.mT)[..., 0, :]).square().sum(-1)


def least_outside(
    sizes: Int[Tensor, " row"], tolerance: Callable[[Any], Any]
) -> Float[Tensor, " row"]:
    """Return up to which ‖(I − P_i) 1‖² the ones of a row count as inside: a share of its size within the tolerance.

    Where they do, `centred_rank` does not count the ones either. `centred_rank` may leave out the ones in more rows,
    but it needs a decomposition per row.
    """
    return tolerance(sizes).square() * sizes


def _spread(
    columns: Float[Tensor, "seen k"], visible: Bool[Tensor, " key"]
) -> Float[Tensor, "key k"]:
    return columns.new_zeros((len(visible), columns.shape[1])).masked_scatter(
        visible[:, None], columns
    )


@one_thread()
def joint_space(
    compact: Float[Tensor, "head key d"], visible: Bool[Tensor, " key"], tolerance: float
) -> SimplexSpace:
    """Return the space of the rows of one or several heads, one after another, whose outputs' sum must not change.

    ``compact`` are the heads' T in coordinates that they share, float64; at least one key is visible. The sum of every
    row stays, and the rank of one row is by `centred_rank`. The space of several has no ``free``: it is for programs in
    which the sum of the outputs may change a little. On one thread. Cost O(n r²).
    """
    seen = compact[:, visible]
    heads, keys, _ = seen.shape
    left, sigma, _ = svd((seen - seen.mean(1, keepdim=True)).flatten(0, 1))
    kept = sigma > tolerance * singular_values(seen.flatten(0, 1))[:1]
    ones = torch.eye(heads).to(left).repeat_interleave(keys, 0) / keys**0.5
    basis = torch.cat([ones, left[:, kept]], 1)
    everywhere = visible.repeat(heads)
    # QR once more: columns are orthogonal to the constant only up to rounding relative to their singular value.
    columns = _spread(torch.linalg.qr(basis).Q, everywhere)
    scales = torch.cat([torch.full((heads,), torch.inf).to(sigma), sigma[kept]])
    if heads == 1:
        return SimplexSpace(columns, scales, everywhere, tolerance, basis)
    blocks = torch.arange(heads).repeat_interleave(len(visible))
    return SimplexSpace(columns, scales, everywhere, tolerance, blocks=blocks)
