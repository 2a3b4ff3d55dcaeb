"""The space of a row's alternatives on the simplex, LN([T, 1]), and its complement, which must not change."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from identilens.linalg.decompositions import singular_values, svd
from identilens.linalg.factor import Factor, squared_norm
from identilens.linalg.threads import one_thread

ROUNDING = 1e-12
"""Entries of an orthonormal basis below this are rounding: the weight is the same in every alternative."""

_DOUBTED = 1e-8
"""Squared lengths of rows of N up to which they are computed with all digits."""


@dataclass(frozen=True)
class SimplexSpace:
    """The directions in which a row can change without changing its output and sum, and the other directions.

    Those of several rows may stand in one, with axes of heads and rows before the others. One of lower rank than
    another has columns of zeros then, and ``visible`` may be a mask of each.

    Attributes:
        kept: B, orthonormal columns that span [T, 1] on the visible keys; zero rows on hidden keys.
            The first column is constant.
        scales: Size of the change of T's rows' mixture for a unit change of xᵀ B along each column, infinite for the
            first: the sum of a row never changes.
        visible: True on the keys that the row sees.
        tolerance: Share of σ_max(T) below which a direction of T counts as zero.
        blocks: Number of the row that each key belongs to, where several rows beside each other change together.
    """

    kept: Float[Tensor, "*row key rho"]
    scales: Float[Tensor, "*row rho"]
    visible: Bool[Tensor, "*#row key"]
    tolerance: float
    blocks: Int[Tensor, " key"] | None = None

    @cached_property
    def basis(self) -> Float[Tensor, "*head seen rho"]:
        """B on the visible keys, of rows that see the same."""
        return self.kept[..., self.visible, :]

    def of(self, rows: Any) -> "SimplexSpace":
        """Return the spaces of some of several rows, each with a mask of its own; that of one by number, as wide."""
        axes = {name: getattr(self, name)[rows] for name in ("kept", "scales", "visible")}
        return replace(self, **axes)

    @property
    def rank(self) -> int:
        """Numerical rank of [T, 1] on the visible keys; the largest of several heads."""
        return self.kept.shape[-1]

    @property
    def nullity(self) -> int:
        """Simplex nullity: dimension of LN([T, 1]) on the visible keys; 0 of several rows together, see `free`."""
        return 0 if self.blocks is not None else int(self.visible.sum()) - self.rank

    @cached_property
    def free(self) -> Float[Tensor, "key nullity"]:
        """N, orthonormal basis of LN([T, 1]) on the visible keys, zero rows elsewhere; without columns of several rows.

        As large as the square of the keys, and made when it is first asked for.
        """
        everywhere = self.kept.new_zeros(len(self.visible), self.nullity)
        if self.nullity:
            with one_thread():
                free = torch.linalg.qr(self.basis, mode="complete").Q[:, self.rank :]
            moves = torch.linalg.vector_norm(free, dim=1, keepdim=True) > ROUNDING
            everywhere[self.visible] = free * moves
        return everywhere

    @property
    def movable(self) -> Bool[Tensor, "*row key"]:
        """True on the keys that take part in some alternative; the others keep their weight."""
        if self.blocks is not None:
            return torch.zeros_like(self.visible)
        # The length of a row of N is that of a unit vector outside B: 1 − ‖B_k‖² but where that is rounding.
        doubted = 1 - self.kept.square().sum(-1) < _DOUBTED
        most = int(doubted.sum(-1).max())
        keys = doubted.byte().argsort(dim=-1, descending=True, stable=True)[..., :most]
        outside = one_hot(keys, self.kept.shape[-2]).to(self.kept)
        # Twice, to lose no digit.
        for _ in range(2):
            outside = outside - outside @ self.kept @ self.kept.mT
        moves = torch.linalg.vector_norm(outside, dim=-1) > ROUNDING
        return self.visible & torch.ones_like(doubted).scatter(-1, keys, moves)


def centred_rank(
    compact: Float[Tensor, "*batch n r"], factor: Factor, tolerance: float
) -> Int[Tensor, "*batch"]:
    """Return rank([T, 1]) − 1. Every rank of [T, 1] in this package is counted by this rule.

    It is the number of singular values of T minus its column means that exceed the tolerance times σ_max(T). So sums
    are exact and the units of T do not matter (Brunner et al. 2020, 3.3; Bhardwaj et al. 2021, P2 and P3). It is
    rank(T) or one less: one less when a change of T within the tolerance brings the ones into its column space.

    Certified is rank(T) from the ``factor`` of T: with the share s² of the ones' square outside col(T), no singular
    value is less than s / ‖T⁺‖.
    """
    share = ones_outside(factor.basis) / compact.shape[-2]
    limit = tolerance**2 * squared_norm(factor.coordinates) * squared_norm(compact)
    certified = (factor.rank == compact.shape[-1]) & (share > limit)
    rank = factor.rank.clone()
    if not certified.all():
        rest = compact[~certified]
        sigma = singular_values(rest - rest.mean(-2, keepdim=True))
        largest = tolerance * torch.linalg.matrix_norm(rest, 2)
        rank[~certified] = (sigma > largest[..., None]).sum(-1)
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


@one_thread()
def row_space(
    compact: Float[Tensor, "*row key r"],
    visible: Bool[Tensor, "*#row key"],
    tolerance: float | Float[Tensor, "*row"],
    blocks: Int[Tensor, " key"] | None = None,
) -> SimplexSpace:
    """Return the space of a row, or of each of several: its output and its sum must not change.

    ``compact`` is T of each, float64; each sees at least one key. The rank is by `centred_rank`. With ``blocks`` each
    row is several beside each other, whose outputs' sum must not change, nor any of their sums: the space has no
    ``free``, and is for programs in which the sum of the outputs may change a little. On one thread. Cost O(n r²).
    """
    held = compact * visible[..., None]
    constant = visible[..., None].to(held)
    if blocks is not None:
        constant = constant * one_hot(blocks)
    constant = constant / constant.sum(-2, keepdim=True).sqrt()
    constant = constant.expand(*held.shape[:-1], -1)
    left, sigma, _ = svd(held - constant @ (constant.mT @ held))
    limits = torch.as_tensor(tolerance, device=held.device)[..., None]
    kept = sigma > limits * singular_values(held)[..., :1]
    kept = kept[..., : int(kept.sum(-1).max())]
    basis = torch.cat([constant, left[..., : kept.shape[-1]] * kept[..., None, :]], -1)
    # QR once more: columns are orthogonal to the constants only up to rounding relative to their singular value.
    columns = torch.linalg.qr(basis).Q * (basis != 0).any(-2, keepdim=True) * visible[..., None]
    scales = sigma[..., : kept.shape[-1]].masked_fill(~kept, torch.inf)
    scales = pad(scales, (constant.shape[-1], 0), value=torch.inf)
    return SimplexSpace(columns, scales, visible, float(limits.max()), blocks)


def joint_space(
    compact: Float[Tensor, "head key d"], visible: Bool[Tensor, " key"], tolerance: float
) -> SimplexSpace:
    """Return the space of the rows of one or several heads, one after another, whose outputs' sum must not change.

    ``compact`` are the heads' T in coordinates that they share, float64; at least one key is visible: see `row_space`.
    """
    heads, keys, _ = compact.shape
    blocks = torch.arange(heads, device=compact.device).repeat_interleave(keys)
    return row_space(
        compact.flatten(0, 1), visible.repeat(heads), tolerance, blocks if heads > 1 else None
    )
