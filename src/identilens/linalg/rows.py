"""Rows of attention projected on the column space of T restricted to the keys that each row sees, all heads at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import Factor
from identilens.linalg.memory import blocks, joined
from identilens.linalg.simplex import ones_outside

BLOCK = 64
"""Causal rows that share a factorisation."""

Tolerance = Callable[[Any], Any]
"""Returns the tolerance of T at so many keys, or of T at each of several numbers of keys."""

Mixer = Callable[[slice, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Takes rows and their weights a; returns what P a mixes of each key's columns, ‖P a‖² and ‖(I − P) 1‖²."""


@dataclass(eq=False)
class RowProjector(ABC):
    """Projects each row on the column space of T at the keys that it sees (Brunner et al. 2020, Eq. 9).

    Values are whitened: the columns of W span those of T, and heads that share values share W, the basis of the factor
    of all rows of T. With G the Gram matrix of W over a row's keys, P a = W G⁻¹ Wᵀ a there.

    Attributes:
        compact: F of each head, see `ProjectedValues`.
        factor: Its factor.
        tolerance: That of T.
        visible: Which keys each query sees.
        rank: Rank of T restricted to the last query's keys.
        sizes: How many keys each query sees.
    """

    compact: Float[Tensor, "head key r"]
    factor: Factor
    tolerance: Tolerance
    visible: Bool[Tensor, "query key"]

    def __post_init__(self) -> None:
        self.white, self.rank = self.factor.basis, self.factor.rank
        # By parts, since a sum of booleans takes eight bytes for each.
        self.sizes = joined([part.sum(-1) for part in self.visible.split(1024)])
        self.keys, self.width = self.white.shape[-2:]
        self.share = max(len(self.compact), 1) // max(len(self.white), 1)
        self._row_bytes = 0

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys; here every query sees every key."""
        return self.rank[:, None].expand(-1, len(self.visible))

    @abstractmethod
    def project(
        self, rows: slice, weights: Float[Tensor, "head row key"]
    ) -> tuple[Float[Tensor, "head row key"], Float[Tensor, "head row"]]:
        """Return P a of some rows, and ‖(I − P) 1‖², what is left of the ones on the keys that each sees.

        Weights are float64 and zero on hidden keys, of which the last may be left out.
        """

    def end(self, rows: slice | Tensor) -> int:
        """Return the number of keys up to the last that some of the rows sees."""
        return int(self.visible[rows].any(0).nonzero()[-1]) + 1

    def _spaces(self, heads: Float[Tensor, "head row c"]) -> Float[Tensor, "space all c"]:
        """Return the rows of heads that share values one after another."""
        return heads.reshape(len(self.white), self.share * heads.shape[1], heads.shape[-1])

    def _heads(self, spaces: Float[Tensor, "space all c"]) -> Float[Tensor, "head row c"]:
        return spaces.reshape(len(self.compact), spaces.shape[1] // self.share, spaces.shape[-1])

    def steps(self, queries: int) -> list[slice]:
        """Return the rows, as many at a time as memory allows."""
        held = self._row_bytes + 40 * len(self.compact) * self.keys
        return blocks(queries, held, self.white.device, BLOCK if self._row_bytes == 0 else 1)

    def effective(
        self, weights: Float[Tensor, "head query key"]
    ) -> Float[Tensor, "head query key"]:
        """Return effective attention of all rows, zero on hidden keys, in float64."""
        result = weights.to(torch.float64, copy=True)
        for rows in self.steps(result.shape[1]):
            result[:, rows] = self.project(rows, result[:, rows])[0]
        return result

    def mixer(self, *columns: Float[Tensor, "head key _"]) -> Mixer:
        """Return what mixes each key's columns, one part after the other, by effective attention."""
        of_keys = torch.cat(columns, -1)

        def mix(rows: slice, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            effective, outside = self.project(rows, weights)
            squares = torch.linalg.vector_norm(effective, dim=-1).square()
            return effective @ of_keys[:, : weights.shape[-1]], squares, outside

        return mix


class FullRows(RowProjector):
    """Every query sees every key, so that G is the identity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._outside = ones_outside(self.white).repeat_interleave(self.share)[:, None]

    def project(self, rows: slice, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return W Wᵀ a, and what is left of the ones, which is the same in all rows."""
        projected = self._spaces(weights) @ self.white @ self.white.mT
        return self._heads(projected), self._outside.expand(weights.shape[:2])

    def mixer(self, *columns: Tensor) -> Mixer:
        """Return what mixes by way of W, so that no row of effective attention is computed."""
        inner = self.white.mT.repeat_interleave(self.share, 0) @ torch.cat(columns, -1)

        def mix(rows: slice, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            coordinates = self._heads(self._spaces(weights) @ self.white)
            squares = torch.linalg.vector_norm(coordinates, dim=-1).square()
            return coordinates @ inner, squares, self._outside.expand(weights.shape[:2])

        return mix
