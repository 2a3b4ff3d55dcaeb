"""Products with the orthonormal columns that an alternative's output and sums are read from."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg.decompositions import svd
from identilens.linalg.memory import budget_on

_ABSENT = 1e-10
"""Singular values of a row's part of the columns that are rounding."""


@dataclass(frozen=True)
class Columns:
    """B, orthonormal columns on the keys of several rows beside each other, as many keys of each.

    A row's part of B has a rank far below B's, so that products go by bases of these parts.

    Attributes:
        kept: B; of one row for each of several heads, where columns of zeros stand for those that a head lacks.
        rows: Number of rows.
    """

    kept: Float[Tensor, "*head key rho"]
    rows: int

    @cached_property
    def _parts(self) -> tuple[Float[Tensor, "*head row key r"], Float[Tensor, "*head row_r rho"]]:
        """Orthonormal bases of the rows' parts of B, and B's coordinates in them."""
        left, sigma, right = svd(self.kept.unflatten(-2, (self.rows, -1)))
        most = int((sigma > _ABSENT).sum(-1).max())
        parts = sigma[..., :most, None] * right[..., :most, :]
        return left[..., :most], parts.flatten(-3, -2)

    @cached_property
    def frame(self) -> Float[Tensor, "*head rho rho"]:
        """The coordinates of `gram`: where B spans the rows' parts of it, those in which its blocks are the rows'."""
        return self._parts[1] if self._apart else torch.eye(self.kept.shape[-1]).to(self.kept)

    @cached_property
    def _apart(self) -> bool:
        full = bool((self.kept != 0).any(-2).all())
        return self.rows > 1 and full and self._parts[1].shape[-2] == self.kept.shape[-1]

    @cached_property
    def _products(self) -> Float[Tensor, "*head key pair"]:
        return (self.kept[..., None] * self.kept[..., None, :]).flatten(-2)

    def gram(self, ratio: Float[Tensor, "*program key"]) -> Float[Tensor, "*program rho rho"]:
        """Return Bᵀ D B for each diagonal D, in the coordinates of the frame, and 1 for columns of zeros."""
        rho = self.kept.shape[-1]
        if self._apart:
            bases, _ = self._parts
            bases = bases[..., None, :, :, :]
            rows, keys, rank = bases.shape[-3:]
            parts = (bases * ratio.unflatten(-1, (rows, keys))[..., None]).mT @ bases
            blocks = ratio.new_zeros(*ratio.shape[:-1], rows, rank, rows, rank)
            blocks.diagonal(dim1=-4, dim2=-2).copy_(parts.movedim(-3, -1))
            return blocks.flatten(-2).flatten(-3, -2)
        if 8 * self.kept.numel() * rho > budget_on(self.kept.device) // 8:
            each = self.kept[..., None, :, :]
            equations = (each * ratio[..., None]).mT @ each
        else:
            equations = (ratio @ self._products).unflatten(-1, (rho, rho))
        equations.diagonal(dim1=-2, dim2=-1).add_((self.kept == 0).all(-2, keepdim=True))
        return equations

    def solve(
        self, factor: Float[Tensor, "*program rho rho"], right: Float[Tensor, "*program rho"]
    ) -> Float[Tensor, "*program rho"]:
        """Return solutions of equations in B's own coordinates, whose Cholesky factors are in those of the frame."""
        # Unlike cholesky_solve, these read the factors where they are.
        half = torch.linalg.solve_triangular(
            factor, (right @ self.frame.mT)[..., None], upper=False
        )
        solved = torch.linalg.solve_triangular(factor.mT, half, upper=True)
        return solved[..., 0] @ self.frame
