"""Sums over rows that see every key, so that all rows of a head share one projector, without effective attention."""

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import ProjectedValues
from identilens.linalg.simplex import ones_outside
from identilens.measures.attention.moments import RowSums


class SharedRows:
    """Collects the sums of rows, of all heads or of some heads at a time.

    Even attention, 1 / keys, is subtracted before any product in the precision of the weights, so that near-uniform
    maps do not lose digits. Each key has one of several types. Memory O(n) per head beside the factors.
    """

    def __init__(self, projected: ProjectedValues, queries: int, key_types: Float[Tensor, "head key type"]) -> None:
        self.projected, self.key_types = projected, key_types
        basis = projected.factor.basis
        # Where the rows of T are independent in every head, effective attention equals the weights.
        self._independent = bool((projected.factor.rank == projected.keys).all())
        self._basis = basis[..., :0] if self._independent else basis
        self._rows = basis.new_zeros(4, len(basis), queries)
        self._columns = self._inner = self._back = self._ones = basis[..., :0]
        self._even = 1 / projected.keys

    def add(
        self, heads: slice, rows: slice, weights: Float[Tensor, "head row key"],
        raw: Float[Tensor, "head row type"], overwrite: bool,
    ) -> tuple[Float[Tensor, "head row type"], Float[Tensor, "head row r"]]:  # fmt: skip
        """Add some rows; return effective attention by key type in float64, and effective attention times F."""
        if self._columns.shape[-1] == 0:
            self._prepare(weights.dtype)
        compact = self.projected.compact[heads]
        unchanged = weights @ compact.to(weights.dtype) if self._independent else None
        moved = weights.sub_(self._even) if overwrite else weights - self._even
        square = torch.linalg.vector_norm(moved, dim=-1).double().square()
        inner, back = self._inner[heads], self._back[heads]
        coordinates, moved_types = (moved @ self._columns[heads]).tensor_split([back.shape[-2]], -1)
        # Every key has one type: sums over types are sums over keys.
        total = moved_types.double().sum(-1)
        if unchanged is not None:
            self._rows[:2, heads, rows] = torch.stack([total, square])
            return raw.double(), unchanged
        received, inside = coordinates.double() @ inner, torch.linalg.vector_norm(coordinates, dim=-1)
        self._rows[:, heads, rows] = torch.stack([total, square, received.sum(-1), inside.double().square()])
        ones = self._even * self._ones[heads]
        return received + ones @ inner, (coordinates @ back).add_(ones.to(weights.dtype) @ back)

    def sums(self) -> RowSums:
        """Return the sums of all rows added."""
        total, square, projected, projected_square = self._rows
        if self._independent:
            return RowSums(self._even, total, square, total, square, square, torch.zeros_like(square))
        factor = self.projected.factor
        outside, nullity = ones_outside(factor), self.projected.keys - factor.rank
        counted = torch.where(self.projected.simplex_nullity < nullity, outside, 0.0)
        outside, counted = (one[:, None].expand_as(total) for one in (outside, counted))
        return RowSums.of_projection(self._even, total, square, projected, projected_square, outside, counted)

    def _prepare(self, dtype: torch.dtype) -> None:
        """Compute what all rows share, in the precision of the weights where that is enough."""
        # The even share in the precision of the weights: subtracting it is exact for weights close to it.
        self._even = float(torch.tensor(self._even, dtype=dtype))
        basis, width = self._basis, self._basis.shape[-1]
        columns = width + self.key_types.shape[-1]
        # Written in one pass over each, without copies in between.
        self._columns = basis.new_empty(*basis.shape[:2], columns, dtype=dtype)
        self._columns[..., :width], self._columns[..., width:] = basis, self.key_types
        self._inner, self._ones = basis.mT @ self.key_types, basis.sum(-2, keepdim=True)
        self._back = self._columns[..., :width].mT @ self.projected.compact.to(dtype)
