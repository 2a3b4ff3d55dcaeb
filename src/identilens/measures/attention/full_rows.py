"""Effective attention when every query sees every key: one projector serves all rows."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg import factorise, relative_tolerance


class FullRows:
    """Projector on col(T) shared by all queries of each head (Brunner et al. 2020, Eq. 9).

    Args:
        compact: F, the projected values in a small orthonormal basis, float64.
        d_model: Columns of T, for the tolerance.
        queries: Number of rows.

    Attributes:
        rank: Of T, one a head.
        basis: U, orthonormal columns spanning col(T).
        independent: Whether T has independent rows in every head, so that weights are their own effective part.
    """

    def __init__(self, compact: Float[Tensor, "head key r"], d_model: int, queries: int) -> None:
        self.queries = queries
        self.keys = compact.shape[-2]
        self.factor = factorise(compact, relative_tolerance(self.keys, d_model))
        self.basis = self.factor.basis
        self.rank: Int[Tensor, " head"] = self.factor.rank
        self.independent = bool((self.rank == self.keys).all())

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        return self.rank[:, None].expand(-1, self.queries)

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return torch.full((self.queries,), self.keys, dtype=torch.int64, device=self.basis.device)

    def effective(self, rows: slice, weights: Float[Tensor, "head row key"]) -> Float[Tensor, "head row key"]:
        """Return effective attention of some rows: weights U Uᵀ, in the precision of the weights."""
        if self.independent:
            return weights
        basis = self.basis.to(weights.dtype)
        return weights @ basis @ basis.mT

    def from_outputs(self, rows: slice, outputs: Float[Tensor, "head row r"]) -> Float[Tensor, "head row key"]:
        """Return effective attention from head outputs in the basis of ``compact``: O F⁺."""
        return outputs @ self.factor.coordinates @ self.basis.mT
