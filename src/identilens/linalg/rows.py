"""Rows of attention projected on the column space of T restricted to the keys that each row sees, all heads at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import Factor
from identilens.linalg.memory import blocks
from identilens.linalg.simplex import ones_outside

BLOCK = 64
"""Causal rows that share a factorisation."""

Tolerance = Callable[[Any], Any]
"""Returns the tolerance of T at so many keys, or of T at each of several numbers of keys."""


class Decomposed(NamedTuple):
    """Rows that needed a decomposition of their own: their heads and places, and P a on all keys."""

    heads: Int[Tensor, " some"]
    places: Int[Tensor, " some"]
    projected: Float[Tensor, "some key"]


class ProjectedRows(NamedTuple):
    """Rows a = m 1 + w of attention, m the even share of the keys that a row sees, and the row's projector P.

    P a is W z on these keys, with W the whitened values; or the mean of a over keys with the same row of T, where
    different rows are independent; or decomposed.

    Attributes:
        even: m.
        total: Σ w.
        square: ‖a‖².
        moved: Σ P w.
        moved_square: ‖P w‖².
        outside: ‖(I − P) 1‖².
        coordinates: z; 0 in other rows.
        equal: Whether P a is the mean of a over keys with the same row of T.
        decomposed: The other rows.
    """

    even: Float[Tensor, " row"]
    total: Float[Tensor, "head row"]
    square: Float[Tensor, "head row"]
    moved: Float[Tensor, "head row"]
    moved_square: Float[Tensor, "head row"]
    outside: Float[Tensor, "head row"]
    coordinates: Float[Tensor, "head row k"]
    equal: Bool[Tensor, "head row"]
    decomposed: Decomposed | None = None


class RowProjector(ABC):
    """Projects each row on the column space of T at the keys that it sees (Brunner et al. 2020, Eq. 9).

    Values are whitened: the columns of W span those of T, and heads that share values share W. With w = Wᵀ a and G the
    Gram matrix of W over a row's keys, P a = W G⁻¹ w there, so that sums over rows need no map. W is the basis of the
    factor of all rows of T = F Qᵀ.

    Attributes:
        rank: Rank of T restricted to the last query's keys.
    """

    def __init__(
        self,
        compact: Float[Tensor, "head key r"],
        factor: Factor,
        tolerance: Tolerance,
        visible: Bool[Tensor, "query key"],
    ) -> None:
        self.compact, self.white = compact, factor.basis
        self.tolerance, self.visible = tolerance, visible
        self.keys, self.width = self.white.shape[-2:]
        self.share = max(len(compact), 1) // max(len(self.white), 1)
        self.rank: Int[Tensor, " head"] = factor.rank
        self._inner = factor.inner
        self._full_width = factor.rank == compact.shape[-1]
        self._row_bytes = 0

    def seen(self, rows: slice) -> Bool[Tensor, "row key"]:
        """Return which keys some queries see."""
        return self.visible[rows]

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return self.visible.sum(-1)

    @abstractmethod
    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""

    @abstractmethod
    def times(
        self, rows: slice, found: ProjectedRows, columns: Float[Tensor, "space key column"]
    ) -> Float[Tensor, "head row column"]:
        """Return W z of projected rows times a few columns, 0 in rows without z."""

    @abstractmethod
    def _found(
        self,
        rows: slice,
        whitened: Float[Tensor, "head row k"],
        weights: Float[Tensor, "head row key"],
        means: Float[Tensor, "head row key"],
    ) -> ProjectedRows:
        """Return projected rows from Wᵀ a, and where that is not enough from the weights, or their `_means`."""

    def steps(self, queries: int) -> list[slice]:
        """Return the rows, as many at a time as memory allows."""
        held = self._row_bytes + 24 * len(self.compact) * self.keys
        return blocks(queries, held, self.white.device, BLOCK if self._row_bytes == 0 else 1)

    def sums(
        self,
        rows: slice,
        weights: Float[Tensor, "head row key"],
        types: Float[Tensor, "space key type"],
    ) -> tuple[ProjectedRows, Float[Tensor, "2 head row type"], Float[Tensor, "head row r"]]:
        """Return some rows projected, weights and effective attention summed by key type, and effective attention F.

        Weights are float64, and zero on hidden keys.
        """
        # Where T has full rank, F is W times a small matrix; else it is what is left of F that counts, too.
        full = bool(self._full_width.all())
        output = [] if full else [self.compact]
        columns = torch.cat([self.white, types, *output], -1)
        raw = self._heads(self._spaces(weights) @ columns)
        means = self._means(rows, weights)
        found = self._found(rows, raw[..., : self.width], weights, means)
        mean = raw if means is weights else self._heads(self._spaces(means) @ columns)
        received = torch.where(found.equal[..., None], mean, self.times(rows, found, columns))
        if found.decomposed is not None:
            heads, places, projected = found.decomposed
            some = projected[:, None] @ columns[heads // self.share]
            received[heads, places] = some[:, 0]
        end = self.width + types.shape[-1]
        summed = torch.stack([raw, received])[..., self.width : end]
        rebuilt = received[..., : self.width] @ self._inner if full else received[..., end:]
        return found, summed, rebuilt

    def effective(
        self, weights: Float[Tensor, "head query key"]
    ) -> Float[Tensor, "head query key"]:
        """Return effective attention of all rows, zero on hidden keys, in float64."""
        result = weights.to(torch.float64, copy=True)
        for rows in self.steps(result.shape[1]):
            given = result[:, rows]
            means = self._means(rows, given)
            whitened = self._heads(self._spaces(given) @ self.white)
            found = self._found(rows, whitened, given, means)
            result[:, rows] = self._assembled(rows, found, means)
        return result

    def _assembled(
        self, rows: slice, found: ProjectedRows, weights: Float[Tensor, "head row key"]
    ) -> Float[Tensor, "head row key"]:
        """Return P a of projected rows on all keys."""
        result = self._heads(self._spaces(found.coordinates) @ self.white.mT) * self.seen(rows)
        result = torch.where(found.equal[..., None], weights, result)
        if found.decomposed is not None:
            heads, places, projected = found.decomposed
            result[heads, places] = projected
        return result

    def _means(
        self, rows: slice, weights: Float[Tensor, "head row key"]
    ) -> Float[Tensor, "head row key"]:
        """Return weights as means over keys with the same row of T, where P a is that."""
        return weights

    def _spaces(self, heads: Float[Tensor, "head row c"]) -> Float[Tensor, "space all c"]:
        """Return the rows of heads that share values one after another."""
        return heads.reshape(len(self.white), self.share * heads.shape[1], heads.shape[-1])

    def _shared(self, heads: Float[Tensor, "head *rest"]) -> Float[Tensor, "space shared *rest"]:
        return heads.reshape(len(self.white), self.share, *heads.shape[1:])

    def _heads(self, spaces: Float[Tensor, "space all c"]) -> Float[Tensor, "head row c"]:
        return spaces.reshape(len(self.compact), spaces.shape[1] // self.share, spaces.shape[-1])


class FullRows(RowProjector):
    """Every query sees every key, so that G is the identity."""

    def __init__(self, compact: Tensor, factor: Factor, tolerance: Tolerance, queries: int) -> None:
        every = torch.ones(1, compact.shape[1], dtype=torch.bool, device=compact.device)
        super().__init__(compact, factor, tolerance, every.expand(queries, -1))
        self._ones, self._outside = (
            one.repeat_interleave(self.share, 0) for one in (factor.ones, ones_outside(factor))
        )

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T, for each query."""
        return self.rank[:, None].expand(-1, len(self.visible))

    def times(self, rows: slice, found: ProjectedRows, columns: Tensor) -> Tensor:
        """Return W z times a few columns, of which Wᵀ is taken first."""
        return self._heads(self._spaces(found.coordinates) @ (self.white.mT @ columns))

    def _found(
        self, rows: slice, whitened: Tensor, weights: Tensor, means: Tensor
    ) -> ProjectedRows:
        shifted = whitened - self._ones / self.keys
        outside = self._outside[:, None].expand(whitened.shape[:2])
        return ProjectedRows(
            whitened.new_full(whitened.shape[1:2], 1 / self.keys),
            weights.sum(-1) - 1,
            squared_norms(weights),
            (shifted * self._ones).sum(-1),
            shifted.square().sum(-1),
            outside,
            whitened,
            torch.zeros_like(outside, dtype=torch.bool),
        )


def squared_norms(rows: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Return the sum of the squares of each row, in one reading."""
    return torch.linalg.vector_norm(rows, dim=-1).square()
