"""The scalars of an attention map, summed over blocks of rows, so that no n x n matrix is in memory."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg import ProjectedValues, Visible
from identilens.linalg.causal_rows import CausalRows
from identilens.linalg.causal_sums import CausalSums
from identilens.linalg.full_rows import FullRows
from identilens.linalg.irregular_rows import IrregularRows
from identilens.linalg.narrow import times_few
from identilens.linalg.simplex import least_outside
from identilens.measures.attention.moments import Moments, RowSums
from identilens.measures.attention.shared_rows import Coordinates, SharedRows


@dataclass(frozen=True)
class AttentionSummary:
    """Scalars of each head of a layer on one text. For masked rows, rank and nullities are those of the last row.

    A learned sink counts as one more key that every row sees, with value zero and the weight that its row lacks to 1.

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
    sums follow from the coordinates of the weights in an orthonormal basis of col(T). Products of rows that do not see
    every key are in float64, but those of causal rows where less is enough. Memory O(n · block). ``queries`` is the
    total number of rows. Each query and each key has one of several types; types may differ from head to head, when
    heads of several texts are summarised together. ``sink``: a learned sink takes part in the softmax.
    """

    def __init__(
        self, projected: ProjectedValues, queries: int, visible: Visible = None,
        query_types: Float[Tensor, "*#head query type"] | None = None,
        key_types: Float[Tensor, "*#head key type"] | None = None, *, sink: bool = False,
    ) -> None:  # fmt: skip
        self.projected, values, self.sink = projected, projected.values, sink
        heads, keys, _ = values.shape
        self.projector, self.visible = projected.projector(queries, visible), visible
        one = {"dtype": values.dtype, "device": values.device}
        query_types = torch.ones(queries, 1, **one) if query_types is None else query_types.to(**one)
        key_types = torch.ones(keys, 1, **one) if key_types is None else key_types.to(**one)
        self.query_types, self.key_types = (types.expand(heads, -1, -1) for types in (query_types, key_types))
        self._received = torch.zeros(2, heads, query_types.shape[-1], key_types.shape[-1], **one)
        self._error = torch.zeros(2, heads, **one)
        self._factors: Tensor | None = None
        self._sizes = self.projector.row_sizes()
        self._moments = Moments(heads, self._sizes + sink)

    @property
    def by_head(self) -> bool:
        """Whether the heads can be added one after the other, because their rows see every key."""
        return isinstance(self.projector, FullRows)

    def add(
        self, rows: slice, weights: Float[Tensor, "head row key"], outputs: Float[Tensor, "head row r"], *,
        heads: slice = slice(None), raw: Float[Tensor, "head row type"] | None = None,
    ) -> None:  # fmt: skip
        """Add some rows: their weights, and their head outputs in the basis of the compact values.

        ``heads`` are those given (see `by_head`), ``raw`` their attention by key type if it is known.
        """
        if raw is None:
            raw = times_few(weights, self.key_types[heads, : weights.shape[-1]].to(weights.dtype))
        if self.causal is not None:
            self._causal_rows(self.causal, rows, weights, outputs, raw)
        elif self.by_head:
            found, back = self.project(rows, weights, heads=heads, raw=raw), self._back(weights.dtype)[heads]
            self.check(weights @ back if self.shared.independent else found.times(back), outputs, heads=heads)
        elif isinstance(self.projector, IrregularRows):
            self._masked_rows(self.projector, rows, weights, outputs)

    def project(
        self, rows: slice, weights: Float[Tensor, "head row key"], *, heads: slice,
        raw: Float[Tensor, "head row type"], overwrite: bool = False,
    ) -> Coordinates:  # fmt: skip
        """Add some rows that see every key, without a check; return effective attention's coordinates.

        ``overwrite`` allows to use the memory of the weights.
        """
        received, found = self.shared.add(heads, rows, weights, raw, overwrite=overwrite)
        self._receive(heads, rows, raw, received)
        return found

    def check(
        self, rebuilt: Float[Tensor, "head row r"], outputs: Float[Tensor, "head row r"], *, heads: slice = slice(None)
    ) -> None:
        """Add up the difference of effective attention times F and the model's own head outputs."""
        sizes = [torch.linalg.vector_norm(one, dim=-1) for one in (rebuilt - outputs, outputs)]
        self._error[:, heads] += torch.stack(sizes).double().square().sum(-1)

    def finish(self) -> AttentionSummary:
        """Return the summary of all rows added."""
        if self.by_head:
            self._count(self.shared.sums())
        rank, mask = self.projector.rank, self.visible
        seen = self.projected.restricted(mask[-1]) if isinstance(mask, Tensor) else self.projected
        seen = seen.with_sink() if self.sink else seen
        error = (self._error[0] / self._error[1].clamp_min(torch.finfo(self._error.dtype).tiny)).sqrt()
        null, simplex_null = self._moments.null_shares()
        return AttentionSummary(
            rank, self._sizes[-1] + self.sink - rank, seen.simplex_nullity, null, simplex_null,
            self._moments.pearson(), error, *self._received,
        )  # fmt: skip

    @cached_property
    def causal(self) -> CausalSums | None:
        """Sums of rows that see the keys up to their own, if these are such rows."""
        return CausalSums(self.projector) if isinstance(self.projector, CausalRows) else None

    @cached_property
    def shared(self) -> SharedRows:
        """Sums of rows that see every key."""
        return SharedRows(self.projected, self.query_types.shape[1], self.key_types)

    @cached_property
    def _least(self) -> Float[Tensor, " row"]:
        return least_outside(self._sizes, self.projected.tolerance_of)

    def _back(self, dtype: torch.dtype) -> Float[Tensor, "head k r"]:
        """Return what effective attention, or its coordinates in the basis, is multiplied with for the head outputs."""
        if self._factors is None:
            back = self.projected.compact if self.shared.independent else self.projected.factor.inner
            self._factors = back.to(dtype)
        return self._factors

    def _count(self, sums: RowSums) -> None:
        self._moments.add(sums.with_sink() if self.sink else sums)

    def _receive(self, heads: slice, rows: slice, *received: Float[Tensor, "head row type"]) -> None:
        self._received[:, heads] += self.query_types[heads, rows].mT @ torch.stack([one.double() for one in received])

    def _causal_rows(
        self, sums: CausalSums, rows: slice, weights: Tensor, outputs: Float[Tensor, "head row r"], raw: Tensor
    ) -> None:
        """Add rows that see the keys up to their own; the outputs of some of them are checked."""
        found, checked, rebuilt = sums.add(rows, weights, raw, self.key_types)
        sizes, square, total, effective = self._sizes[rows], found.raw_square, found.raw, found.received.sum(-1)
        # Every row's even share m, subtracted from sums: Σ (a − m)² = Σ a² − 2 m Σ a + m.
        even = 1 / sizes.double()
        moments = RowSums(
            even, total - 1, square - 2 * even * total + even, effective - 1,
            found.square - 2 * even * effective + even, found.square - even * (effective + total) + even,
            torch.where(found.outside > self._least[rows], found.outside, 0.0),
        )  # fmt: skip
        self._count(moments)
        self._receive(slice(None), rows, raw, found.received)
        self.check(rebuilt, outputs[:, checked])

    def _masked_rows(
        self, projector: IrregularRows, rows: slice, weights: Tensor, outputs: Float[Tensor, "head row r"]
    ) -> None:
        given, seen = weights.double(), projector.seen(rows)
        ones = seen.double().expand_as(given)
        effective, effective_ones = (projector.effective(rows, one) for one in (given, ones))
        even = 1 / self._sizes[rows].double()[:, None]
        moved, moved_effective = ((one - even).masked_fill(~seen, 0.0) for one in (given, effective))
        products = [(moved, moved), (moved_effective, moved_effective), (moved, moved_effective)]
        square, effective_square, cross = ((one * other).sum(-1) for one, other in products)
        outside = (ones - effective_ones).square().sum(-1)
        counted = torch.where(outside > self._least[rows], outside, 0.0)
        sums = RowSums(even[:, 0], moved.sum(-1), square, moved_effective.sum(-1), effective_square, cross, counted)
        self._count(sums)
        self._receive(slice(None), rows, given @ self.key_types, effective @ self.key_types)
        self.check(effective @ self.projected.compact, outputs)
