"""Sums over rows that see every key, so that all rows of a head share one projector, without effective attention."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import ProjectedValues
from identilens.linalg.narrow import times_few
from identilens.linalg.simplex import ones_outside
from identilens.measures.attention.moments import RowSums


class Coordinates(NamedTuple):
    """Effective attention of some rows in an orthonormal basis U of the column space.

    Attributes:
        moved: Coordinates of the weights minus even attention; none where effective attention equals the weights.
        even: Those of even attention, the same for every row.
    """

    moved: Float[Tensor, "head row k"]
    even: Float[Tensor, "head 1 k"]

    def times(self, columns: Float[Tensor, "head k column"]) -> Float[Tensor, "head row column"]:
        """Return effective attention times some columns, of which Uᵀ times them is given."""
        return (self.moved + self.even) @ columns


class SharedRows:
    """Collects the sums of rows, of all heads or of some heads at a time.

    Even attention, 1 / keys, is subtracted before the product with the basis, so that near-uniform maps do not lose
    digits. Each key has one of several types. Memory O(n) per head beside the factors.
    """

    def __init__(self, projected: ProjectedValues, queries: int, key_types: Float[Tensor, "head key type"]) -> None:
        self.projected, self.key_types = projected, key_types
        basis = projected.factor.basis
        # Where the rows of T are independent in every head, effective attention equals the weights.
        self.independent = projected.factor.independent
        self._rows = basis.new_zeros(4, len(basis), queries)
        self._basis = self._inner = self._ones = basis[..., :0]
        self._even = 1 / projected.keys

    def add(
        self, heads: slice, rows: slice, weights: Float[Tensor, "head row key"], raw: Float[Tensor, "head row type"],
        *, overwrite: bool,
    ) -> tuple[Float[Tensor, "head row type"], Coordinates]:  # fmt: skip
        """Add some rows; return effective attention by key type, and its coordinates.

        ``raw`` is the attention by key type; ``overwrite`` allows to use the memory of the weights.
        """
        self._prepare(weights.dtype)
        even = self._even
        moved = weights.sub_(even) if overwrite else weights - even
        total, square = moved.sum(-1).double(), _square(moved)
        if self.independent:
            self._rows[:2, heads, rows] = torch.stack([total, square])
            return raw, Coordinates(moved[..., :0], self._ones[heads])
        inner = self._inner[heads]
        found = Coordinates(moved @ self._basis[heads], even * self._ones[heads])
        received = times_few(found.moved, inner).double()
        self._rows[:, heads, rows] = torch.stack([total, square, received.sum(-1), _square(found.moved)])
        return received + (found.even @ inner).double(), found

    def sums(self) -> RowSums:
        """Return the sums of all rows added."""
        total, square, projected, projected_square = self._rows
        if self.independent:
            return RowSums(self._even, total, square, total, square, square, torch.zeros_like(square))
        factor = self.projected.factor
        outside, nullity = ones_outside(factor), self.projected.keys - factor.rank
        counted = torch.where(self.projected.simplex_nullity < nullity, outside, 0.0)
        outside, counted = (one[:, None].expand_as(total) for one in (outside, counted))
        return RowSums.of_projection(self._even, total, square, projected, projected_square, outside, counted)

    def _prepare(self, dtype: torch.dtype) -> None:
        """Compute what all rows share, in the precision of the weights."""
        if self._basis.shape[-1]:
            return
        # The even share in the precision of the weights: subtracting it is exact for weights close to it.
        self._even = float(torch.tensor(self._even, dtype=dtype))
        self._basis = self.projected.factor.basis.to(dtype)
        self._inner = times_few(self._basis.mT, self.key_types.to(dtype))
        self._ones = self._inner.sum(-1)[:, None]


def _square(rows: Float[Tensor, "head row entry"]) -> Float[Tensor, "head row"]:
    return torch.linalg.vector_norm(rows, dim=-1).double().square()
