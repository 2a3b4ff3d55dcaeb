"""Effective attention when every query sees every key: all rows have the same projector."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg.factor import Factor
from identilens.linalg.row_sums import ProjectedRows, RowSums, squares, times_few
from identilens.linalg.simplex import ones_outside


class _Rounded(NamedTuple):
    """Factors that all rows share, in the precision of the weights.

    Attributes:
        even: The even share 1 / keys; subtracting it is exact for weights close to it.
        basis: U.
        typed: Uᵀ times the key types.
        even_part: Coordinates of even attention.
        inner: Uᵀ F.
    """

    even: float
    basis: Float[Tensor, "head key k"]
    typed: Float[Tensor, "head k type"]
    even_part: Float[Tensor, "head 1 k"]
    inner: Float[Tensor, "head k r"]


class FullRows:
    """Projector on col(T), from the factor of T, for all queries of each head (Brunner et al. 2020, Eq. 9).

    Attributes:
        rank: Rank of T, one per head.
        basis: U, orthonormal columns spanning col(T).
    """

    def __init__(self, factor: Factor, queries: int) -> None:
        self.queries, self.factor, self.basis = queries, factor, factor.basis
        self.keys = self.basis.shape[-2]
        self.rank: Int[Tensor, " head"] = factor.rank
        self._outside: Tensor | None = None
        self._rounded: _Rounded | None = None

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        return self.rank[:, None].expand(-1, self.queries)

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return torch.full((self.queries,), self.keys, dtype=torch.int64, device=self.basis.device)

    def effective(
        self, rows: slice, weights: Float[Tensor, "head row key"]
    ) -> Float[Tensor, "head row key"]:
        """Return effective attention of some rows: weights U Uᵀ, in the precision of the weights."""
        return weights if self.factor.independent else self.factor.project(weights)

    def from_outputs(
        self, rows: slice, outputs: Float[Tensor, "head row r"]
    ) -> Float[Tensor, "head row key"]:
        """Return effective attention from head outputs in the basis of ``compact``: O F⁺."""
        return self.factor.effective(None, outputs)

    def sums(
        self,
        rows: slice,
        weights: Float[Tensor, "head row key"],
        raw: Float[Tensor, "head row type"],
        types: Float[Tensor, "all key type"],
        *,
        heads: slice = slice(None),
        overwrite: bool = False,
        back: Float[Tensor, "head k column"] | None = None,
    ) -> ProjectedRows:
        """Return sums over effective attention of some rows, from its coordinates in the basis.

        Even attention, 1 / keys, is subtracted before the product with the basis, so that near-uniform maps do not lose
        digits. ``raw`` are the weights summed over the keys of each type; ``types`` are the same in every call;
        ``heads`` are those of the weights; ``overwrite`` allows to use the memory of the weights. ``back`` is Uᵀ M of
        the product with effective attention that is rebuilt; F by default.
        """
        shared = self._shared(weights.dtype, types)
        every = list(range(weights.shape[1]))
        if self.factor.independent:
            # Effective attention equals the weights.
            moved = weights - shared.even
            total, square = moved.sum(-1).double(), squares(moved)
            sums = RowSums(
                shared.even, total, square, total, square, square, torch.zeros_like(square)
            )
            return ProjectedRows(
                sums, raw.double(), every, weights @ (shared.basis @ shared.inner)[heads]
            )
        moved = weights.sub_(shared.even) if overwrite else weights - shared.even
        total, square = moved.sum(-1).double(), squares(moved)
        coordinates = moved @ shared.basis[heads]
        received = times_few(coordinates, shared.typed[heads]).double()
        projected, projected_square = received.sum(-1), squares(coordinates)
        if self._outside is None:
            self._outside = ones_outside(self.factor)
        # With a = m + w: e = P w − m (I − P) 1.
        even, outside = shared.even, self._outside[heads, None].expand_as(total)
        sums = RowSums(
            even=even,
            raw=total,
            raw_square=square,
            effective=projected - even * outside,
            effective_square=projected_square + even**2 * outside,
            cross=projected_square + even * (projected - total),
            outside=outside,
        )
        even_part = shared.even_part[heads]
        received = received + (even_part @ shared.typed[heads]).double()
        back = shared.inner[heads] if back is None else back
        return ProjectedRows(sums, received, every, (coordinates + even_part) @ back)

    def _shared(self, dtype: torch.dtype, types: Float[Tensor, "head key type"]) -> _Rounded:
        if self._rounded is None or self._rounded.basis.dtype != dtype:
            basis, even = self.basis.to(dtype), float(torch.tensor(1 / self.keys, dtype=dtype))
            typed = times_few(basis.mT, types.to(dtype))
            # Every key has one type, so that the types add up to the ones.
            even_part = even * typed.sum(-1)[:, None]
            self._rounded = _Rounded(even, basis, typed, even_part, self.factor.inner.to(dtype))
        return self._rounded
