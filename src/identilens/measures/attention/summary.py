"""The scalars of an attention map, summed over blocks of rows, so that no n x n matrix is in memory."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg import ProjectedValues, Visible
from identilens.linalg.causal_rows import CausalRows
from identilens.linalg.full_rows import FullRows
from identilens.linalg.irregular_rows import IrregularRows
from identilens.linalg.simplex import ones_outside, significant
from identilens.measures.attention.moments import Moments, RowSums


@dataclass(frozen=True)
class AttentionSummary:
    """Scalars of each head of a layer on one text. For masked rows, rank and nullities are those of the last row.

    Attributes:
        rank: Numerical rank of T.
        nullity: Number of visible keys minus rank.
        simplex_nullity: Number of visible keys minus rank([T, 1]).
        null_share: ‖null‖² / ‖weights‖², in [0, 1]: the part in LN(T), directions without effect on the output.
        simplex_null_share: The same for LN([T, 1]), directions that also keep the sum of the row; at most null_share.
        pearson: Correlation of raw and effective attention over visible entries; NaN when either is constant.
        reconstruction_error: ‖effective T - head output W_O‖ / ‖head output W_O‖, Frobenius.
        raw_received: Sum of the weights of all queries of a type on all keys of a type.
        effective_received: The same for effective attention.
    """

    rank: Int[Tensor, " head"]
    nullity: Int[Tensor, " head"]
    simplex_nullity: Int[Tensor, " head"]
    null_share: Float[Tensor, " head"]
    simplex_null_share: Float[Tensor, " head"]
    pearson: Float[Tensor, " head"]
    reconstruction_error: Float[Tensor, " head"]
    raw_received: Float[Tensor, "head query_type key_type"]
    effective_received: Float[Tensor, "head query_type key_type"]


class SummaryBuilder:
    """Adds up the rows of a layer's attention block by block and returns their summary.

    Because effective attention is an orthogonal projection, ‖effective_i‖² = ⟨a_i, effective_i⟩ for each row. So all
    sums follow from the coordinates of the weights in an orthonormal basis of col(T). Even attention, 1 / (visible
    keys), is subtracted from each row before any product in the precision of the weights, so that near-uniform maps do
    not lose digits. Memory O(n · block). ``queries`` is the total number of rows. Each query and each key has one of
    several types.
    """

    def __init__(
        self,
        projected: ProjectedValues,
        queries: int,
        visible: Visible = None,
        query_types: Float[Tensor, "query type"] | None = None,
        key_types: Float[Tensor, "key type"] | None = None,
    ) -> None:
        self.projected, self.compact = projected, projected.compact
        heads, keys, _ = self.compact.shape
        self.projector, self.visible = projected.projector(queries, visible), visible
        one = {"dtype": self.compact.dtype, "device": self.compact.device}
        self.query_types = torch.ones(queries, 1, **one) if query_types is None else query_types.to(**one)
        self.key_types = torch.ones(keys, 1, **one) if key_types is None else key_types.to(**one)
        self._received = torch.zeros(2, heads, self.query_types.shape[1], self.key_types.shape[1], **one)
        self._error = torch.zeros(2, heads, **one)
        self._sizes = self.projector.row_sizes()
        self._moments = Moments.empty(heads, self._sizes)
        self._columns: Tensor | None = None
        self._inner = self._ones = self._outside = self.compact

    def add(self, rows: slice, weights: Float[Tensor, "head row key"], outputs: Float[Tensor, "head row r"]) -> None:
        """Add some rows: their weights, and their head outputs in the basis of the compact values."""
        if isinstance(self.projector, FullRows):
            sums, received, rebuilt = self._shared_rows(self.projector, weights)
        else:
            sums, received, rebuilt = self._masked_rows(self.projector, rows, weights)
        self._received += self.query_types[rows].mT @ torch.stack(received)
        self._moments.add(sums)
        self._error[0] += (rebuilt - outputs).square().sum((1, 2))
        self._error[1] += outputs.square().sum((1, 2))

    def finish(self) -> AttentionSummary:
        """Return the summary of all rows added."""
        rank, mask = self.projector.rank, self.visible
        seen = self.projected.restricted(mask[-1]) if isinstance(mask, Tensor) else self.projected
        error = (self._error[0] / self._error[1].clamp_min(torch.finfo(self.compact.dtype).tiny)).sqrt()
        null, simplex_null = self._moments.null_shares()
        return AttentionSummary(
            rank, int(self._sizes[-1]) - rank, seen.simplex_nullity, null, simplex_null, self._moments.pearson(), error,
            *self._received,
        )  # fmt: skip

    def _shared_rows(
        self, projector: FullRows, weights: Tensor
    ) -> tuple[RowSums, tuple[Tensor, Tensor], Float[Tensor, "head row r"]]:
        """Return sums, attention by key type and output of rows that see every key, without effective attention."""
        # The even share in the precision of the weights: subtracting it is exact for weights close to it.
        even = float(torch.tensor(1 / weights.shape[-1], dtype=weights.dtype))
        moved, raw = weights - even, (weights @ self.key_types.to(weights.dtype)).double()
        square = torch.linalg.vector_norm(moved, dim=-1).double().square()
        if projector.independent:
            total = moved.sum(-1, dtype=torch.float64)
            sums = RowSums(even, total, square, total, square, square, torch.zeros_like(square))
            return sums, (raw, raw), weights.double() @ self.compact
        if self._columns is None:
            types = self.key_types.expand(len(projector.basis), -1, -1)
            self._columns = torch.cat([projector.basis, torch.ones_like(types[..., :1])], -1).to(weights.dtype)
            self._inner = projector.basis.mT @ torch.cat([types, self.compact], -1)
            self._ones = projector.basis.sum(-2)[:, None]
            outside, nullity = ones_outside(projector.factor), projector.keys - projector.rank
            counted = torch.where(self.projected.simplex_nullity < nullity, outside, 0.0)
            self._outside = torch.stack([outside, counted])[..., None]
        coordinates, total = (moved @ self._columns).double().tensor_split([projector.basis.shape[-1]], -1)
        by_type, rebuilt = ((coordinates + even * self._ones) @ self._inner).tensor_split([raw.shape[-1]], -1)
        sums = RowSums.of_projection(
            even, total[..., 0], square, (coordinates * self._ones).sum(-1), coordinates.square().sum(-1),
            *self._outside.expand(-1, *square.shape),
        )  # fmt: skip
        return sums, (raw, by_type), rebuilt

    def _masked_rows(
        self, projector: CausalRows | IrregularRows, rows: slice, weights: Tensor
    ) -> tuple[RowSums, tuple[Tensor, Tensor], Float[Tensor, "head row r"]]:
        given, seen = weights.double(), projector.seen(rows)
        ones = seen.double().expand_as(given)
        effective, effective_ones = (projector.effective(rows, one) for one in (given, ones))
        even = 1 / self._sizes[rows].double()[:, None]
        moved, moved_effective = ((one - even).masked_fill(~seen, 0.0) for one in (given, effective))
        products = [(moved, moved), (moved_effective, moved_effective), (moved, moved_effective)]
        square, effective_square, cross = ((one * other).sum(-1) for one, other in products)
        outside = (ones - effective_ones).square().sum(-1)
        counted = significant(outside, self._sizes[rows], self.projected.tolerance_of)
        sums = RowSums(even[:, 0], moved.sum(-1), square, moved_effective.sum(-1), effective_square, cross, counted)
        received = (given @ self.key_types, effective @ self.key_types)
        return sums, received, effective @ self.compact
