"""The scalars of an attention map, accumulated over blocks of rows so that no n x n matrix is ever held."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg import ProjectedValues, Visible
from identilens.linalg.full_rows import FullRows


@dataclass(frozen=True)
class AttentionSummary:
    """Scalars of each head of a layer on one text; for masked rows rank and nullities are the last row's.

    Attributes:
        rank: Numerical rank of T.
        nullity: Visible keys less rank.
        simplex_nullity: Visible keys less rank([T, 1]).
        null_share: ‖null‖² / ‖weights‖², in [0, 1].
        pearson: Correlation of raw and effective attention over visible entries; NaN when either is constant.
        reconstruction_error: ‖effective T - head output W_O‖ / ‖head output W_O‖, Frobenius.
        raw_received: Weight put by all queries of a type on all keys of a type, summed.
        effective_received: The same for effective attention.
    """

    rank: Int[Tensor, " head"]
    nullity: Int[Tensor, " head"]
    simplex_nullity: Int[Tensor, " head"]
    null_share: Float[Tensor, " head"]
    pearson: Float[Tensor, " head"]
    reconstruction_error: Float[Tensor, " head"]
    raw_received: Float[Tensor, "head query_type key_type"]
    effective_received: Float[Tensor, "head query_type key_type"]


class SummaryBuilder:
    """Takes the rows of a layer's attention block by block and returns its summary.

    Because effective attention is an orthogonal projection, ‖effective_i‖² = ⟨a_i, effective_i⟩ row by row:
    all sums follow from the weights' coordinates in an orthonormal basis of col(T). Memory O(n · block).
    There are ``queries`` rows to come; each query and each key is a member of one of several types.
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
        self._squares, self._error, self._first_moment = (torch.zeros(2, heads, **one) for _ in range(3))
        self._columns: Tensor | None = None
        self._inner = self.compact

    def add(self, rows: slice, weights: Float[Tensor, "head row key"], outputs: Float[Tensor, "head row r"]) -> None:
        """Take some rows: their weights, and their head outputs in the basis of the compact values."""
        queries = self.query_types[rows]
        # Within a row in the weights' own precision, between rows in float64.
        raw_square = torch.linalg.vector_norm(weights, dim=-1).double().square().sum(-1)
        if isinstance(self.projector, FullRows) and self.projector.independent:
            raw_by_type = by_type = (weights @ self.key_types.to(weights.dtype)).double()
            square, rebuilt = raw_square, weights.double() @ self.compact
        elif isinstance(self.projector, FullRows):
            raw_by_type, by_type, square, rebuilt = self._shared_rows(weights, self.projector.basis)
        else:
            effective = self.projector.effective(rows, weights)
            raw_by_type = (weights @ self.key_types.to(weights.dtype)).double()
            by_type, square = effective @ self.key_types, torch.linalg.vector_norm(effective, dim=(1, 2)).square()
            rebuilt = effective @ self.compact
        for which, received in enumerate((raw_by_type, by_type)):
            self._received[which] += queries.mT @ received
            self._first_moment[which] += received.sum((1, 2))
        self._squares[0] += raw_square
        self._squares[1] += square
        self._error[0] += (rebuilt - outputs).square().sum((1, 2))
        self._error[1] += outputs.square().sum((1, 2))

    def finish(self) -> AttentionSummary:
        """Return the summary of all rows added."""
        rank, sizes, mask = self.projector.rank, self.projector.row_sizes(), self.visible
        seen = self.projected.restricted(mask[-1]) if isinstance(mask, Tensor) else self.projected
        simplex = seen.simplex_nullity(rank)
        raw, effective = self._squares
        null_share = torch.where(raw > 0, 1 - effective / raw.clamp_min(torch.finfo(raw.dtype).tiny), 0.0).clamp(0, 1)
        error = (self._error[0] / self._error[1].clamp_min(torch.finfo(raw.dtype).tiny)).sqrt()
        pearson = self._pearson(float(sizes.sum()))
        return AttentionSummary(rank, int(sizes[-1]) - rank, simplex, null_share, pearson, error, *self._received)

    def _shared_rows(self, weights: Tensor, basis: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return raw and effective attention by key type, the latter's square and output, without forming it."""
        if self._columns is None:
            types = self.key_types.expand(len(basis), -1, -1)
            self._columns = torch.cat([basis, types], -1).to(weights.dtype)
            self._inner = basis.mT @ torch.cat([types, self.compact], -1)
        products = (weights @ self._columns).double()
        coordinates, by_raw = products.tensor_split([basis.shape[-1]], -1)
        by_type, rebuilt = (coordinates @ self._inner).tensor_split([self.key_types.shape[-1]], -1)
        return by_raw, by_type, coordinates.square().sum((1, 2)), rebuilt

    def _pearson(self, entries: float) -> Tensor:
        raw, effective = self._first_moment / entries
        raw_square, effective_square = self._squares / entries
        covariance = effective_square - raw * effective
        variances = torch.stack([raw_square - raw.square(), effective_square - effective.square()])
        constant = (variances <= 1e-12 * torch.stack([raw_square, effective_square])).any(0)
        pearson = covariance / variances.clamp_min(torch.finfo(raw.dtype).tiny).prod(0).sqrt()
        return torch.where(constant, torch.nan, pearson.clamp(-1, 1))
