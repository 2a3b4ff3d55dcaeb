"""Sums over rows of raw and effective attention, without effective attention itself."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

PerRow = Float[Tensor, "head row"]


@dataclass(frozen=True)
class RowSums:
    """Sums over the visible keys of each row, of weights and effective attention, both minus the even share m.

    With a = m + w and effective = m + e, P the projector on col(T) restricted to the row's keys:

    Attributes:
        even: m, one number for all rows or one per row.
        raw: Σ w.
        raw_square: Σ w².
        effective: Σ e.
        effective_square: Σ e².
        cross: Σ w e.
        outside: ‖(I − P) 1‖²; set to 0 where [T, 1] has no more rank than T.
    """

    even: float | Float[Tensor, " row"]
    raw: PerRow
    raw_square: PerRow
    effective: PerRow
    effective_square: PerRow
    cross: PerRow
    outside: PerRow

    def with_sink(self) -> "RowSums":
        """Return the sums with a learned sink as one more key: weight 1 − Σ a, effective weight 0, value 0."""
        size = 1 / self.even
        even = 1 / (size + 1)
        shift, sink = self.even - even, -self.raw - even
        return RowSums(
            even=even,
            raw=self.raw + size * shift + sink,
            raw_square=self.raw_square + shift * (2 * self.raw + size * shift) + sink.square(),
            effective=self.effective + size * shift - even,
            effective_square=self.effective_square
            + shift * (2 * self.effective + size * shift)
            + even**2,
            cross=self.cross + shift * (self.raw + self.effective + size * shift) - even * sink,
            # The sink's entry of the ones lies outside col(T), whatever the others do.
            outside=self.outside + 1,
        )

    @property
    def null_square(self) -> PerRow:
        """‖a − effective‖² of each row: the part in LN(T)."""
        return self.raw_square - 2 * self.cross + self.effective_square

    @property
    def simplex_null_square(self) -> PerRow:
        """The part in LN([T, 1]): null attention minus its component along (I − P) 1, squared."""
        along = self.raw - self.effective
        ones = along.square() / torch.where(self.outside > 0, self.outside, 1.0)
        return self.null_square - torch.where(self.outside > 0, ones, 0.0)


@dataclass(frozen=True)
class ProjectedRows:
    """Some rows of attention, projected on the column space of T restricted to the keys that each row sees.

    Attributes:
        sums: Sums over the keys of each row.
        received: Effective attention, summed over the keys of each type.
        places: The rows, counted from the first one, of which the head output was rebuilt.
        rebuilt: Effective attention times F, in these rows.
    """

    sums: RowSums
    received: Float[Tensor, "head row type"]
    places: list[int]
    rebuilt: Float[Tensor, "head place r"]


def times_few(
    rows: Float[Tensor, "*batch row key"], columns: Float[Tensor, "*batch key column"]
) -> Float[Tensor, "*batch row column"]:
    """Return rows times a few columns, computed as the transpose of the product: a third of the time on a CPU."""
    return torch.matmul(columns.mT, rows.mT).mT


def squares(rows: Float[Tensor, "head row entry"]) -> PerRow:
    """Return the sum of squares of each row, in float64."""
    return torch.linalg.vector_norm(rows, dim=-1).double().square()


class AssembledRows(ABC):
    """Effective attention that is assembled row by row, from weights or from what they mix."""

    @abstractmethod
    def _assemble(self, rows: slice, weights: Tensor | None, outputs: Tensor) -> Tensor: ...

    def effective(
        self, rows: slice, weights: Float[Tensor, "head row key"]
    ) -> Float[Tensor, "head row key"]:
        """Return effective attention of some rows, zero on forbidden keys, in float64."""
        return self._assemble(rows, weights.double(), weights)

    def from_outputs(
        self, rows: slice, outputs: Float[Tensor, "head row r"]
    ) -> Float[Tensor, "head row key"]:
        """Return effective attention from head outputs in the basis of ``compact``."""
        return self._assemble(rows, None, outputs)
