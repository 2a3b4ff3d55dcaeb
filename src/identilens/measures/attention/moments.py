"""Sums over the entries of raw and effective attention maps; null shares and correlation follow from them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PerRow = Float[Tensor, "head row"]

CONSTANT = 1e-12
"""All entries count as equal up to this variance, as a share of the mean square."""


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
        counted: ‖(I − P) 1‖², 0 where [T, 1] has no more rank than T.
    """

    even: float | Float[Tensor, " row"]
    raw: PerRow
    raw_square: PerRow
    effective: PerRow
    effective_square: PerRow
    cross: PerRow
    counted: PerRow

    @classmethod
    def of_projection(
        cls, even: float, raw: PerRow, raw_square: PerRow, projected: PerRow, projected_square: PerRow,
        outside: PerRow, counted: PerRow,
    ) -> "RowSums":  # fmt: skip
        """Return the sums from those of P w; e = P w − m (I − P) 1 is not computed. ``outside`` is ‖(I − P) 1‖²."""
        return cls(
            even, raw, raw_square, projected - even * outside, projected_square + even**2 * outside,
            projected_square + even * (projected - raw), counted,
        )  # fmt: skip

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
            effective_square=self.effective_square + shift * (2 * self.effective + size * shift) + even**2,
            cross=self.cross + shift * (self.raw + self.effective + size * shift) - even * sink,
            # The sink's entry of the ones lies outside col(T), whatever the others do.
            counted=self.counted + 1,
        )

    @property
    def null_square(self) -> PerRow:
        """‖a − effective‖² of each row: the part in LN(T)."""
        return self.raw_square - 2 * self.cross + self.effective_square

    @property
    def simplex_null_square(self) -> PerRow:
        """The part in LN([T, 1]): null attention minus its component along (I − P) 1, squared."""
        along = self.raw - self.effective
        ones = torch.where(self.counted > 0, along.square() / torch.where(self.counted > 0, self.counted, 1.0), 0.0)
        return self.null_square - ones


class Moments:
    """Running sums over all rows of some heads, in float64; ``sizes`` are the numbers of keys that the rows see."""

    def __init__(self, heads: int, sizes: Int[Tensor, " query"]) -> None:
        self._sums = torch.zeros(5, heads, dtype=torch.float64, device=sizes.device)
        self._null, self._weight = self._sums[:2].clone(), self._sums[0].clone()
        self._entries = sizes.sum().double()
        self._even = len(sizes) / self._entries

    def add(self, rows: RowSums) -> None:
        """Add the sums of some rows."""
        even, size = rows.even, 1 / rows.even
        # Moments are around the mean weight of the whole map; for rows that see every key the shift is rounding.
        shift = even - self._even
        moved = [
            rows.raw + size * shift, rows.effective + size * shift,
            rows.raw_square + shift * (2 * rows.raw + size * shift),
            rows.effective_square + shift * (2 * rows.effective + size * shift),
            rows.cross + shift * (rows.raw + rows.effective + size * shift),
        ]  # fmt: skip
        self._sums += torch.stack(moved).sum(-1)
        self._null += torch.stack([rows.null_square, rows.simplex_null_square]).sum(-1)
        self._weight += (rows.raw_square + even * (2 * rows.raw + 1)).sum(-1)

    def null_shares(self) -> Float[Tensor, "2 head"]:
        """Return null share and simplex null share, in [0, 1]; 0 for maps without weight."""
        return (self._null / self._weight.clamp_min(torch.finfo(torch.float64).tiny)).clamp(0, 1)

    def pearson(self) -> Float[Tensor, " head"]:
        """Return the correlation of raw and effective attention; NaN where all entries of either are equal."""
        raw, effective, *squares = self._sums / self._entries
        raw_variance, effective_variance = squares[0] - raw.square(), squares[1] - effective.square()
        constant = (raw_variance <= CONSTANT * (squares[0] + self._even**2)) | (
            effective_variance <= CONSTANT * (squares[1] + self._even**2)
        )
        covariance = squares[2] - raw * effective
        spread = (raw_variance * effective_variance).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        return torch.where(constant, torch.nan, (covariance / spread).clamp(-1, 1))
