"""Effective attention when every query sees every key: all rows have the same projector."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg.factor import Factor


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

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        return self.rank[:, None].expand(-1, self.queries)

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return torch.full((self.queries,), self.keys, dtype=torch.int64, device=self.basis.device)

    def effective(self, rows: slice, weights: Float[Tensor, "head row key"]) -> Float[Tensor, "head row key"]:
        """Return effective attention of some rows: weights U Uᵀ, in the precision of the weights."""
        return weights if self.factor.independent else self.factor.project(weights)

    def from_outputs(self, rows: slice, outputs: Float[Tensor, "head row r"]) -> Float[Tensor, "head row key"]:
        """Return effective attention from head outputs in the basis of ``compact``: O F⁺."""
        return self.factor.effective(None, outputs)
