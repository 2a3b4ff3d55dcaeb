"""The linear programs of one row, sharing the alternatives that they come by."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.linalg.interior import SharedPrograms
from identilens.linalg.programs import RowPrograms
from identilens.measures.attention.checks import check_precision, checked_weights

ORDER_MARGIN = 1e-9
"""A key is certified above another only when every alternative keeps them this far apart."""

Ends = tuple[Float[Tensor, " seen"], Float[Tensor, " seen"]]


def row_and_space(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    visible: Bool[Tensor, " key"] | None,
) -> tuple[Float[Tensor, " key"], SimplexSpace]:
    """Return a row in float64, checked, and what it may change.

    Raises:
        InputError: Weights that are no distribution over T's rows.
    """
    check_precision(weights_row)
    if weights_row.ndim != 1:
        raise InputError(
            f"expected the weights of one row, shape (key,); got {tuple(weights_row.shape)}; pass A[i]."
        )
    T = head_values(projected_values)
    row = checked_weights(weights_row[None], T, None if visible is None else visible[None])
    return row[0], T.simplex_space(visible)


def filled(
    rows: Float[Tensor, "*row key"], space: SimplexSpace, seen: Float[Tensor, "*row seen"]
) -> Float[Tensor, "*row key"]:
    """Return rows with other numbers on their visible keys."""
    return rows.masked_scatter(space.visible, seen.to(rows.device))


class RowSolver:
    """Programs over the alternatives of one checked row, on its visible keys only.

    Attributes:
        inside: The weights.
        keys: Positions of the visible keys.
        gap: Largest distance so far between a proven bound and an alternative that was found.
    """

    def __init__(self, row: Float[Tensor, " key"], space: SimplexSpace):
        self.keys = torch.nonzero(space.visible).flatten().cpu()
        self.inside = row[space.visible].cpu()
        self.gap = 0.0
        self._kept, self._nullity = space.kept[space.visible].cpu(), space.nullity
        # Keys that take part in no alternative keep their weight.
        self._movable = space.movable[space.visible].cpu()
        # Alternatives met so far: they settle programs before these are run.
        self._seen = [self.inside]
        self._programs: RowPrograms | None = None

    def least(self, cost: Float[Tensor, " seen"]) -> float:
        """Return a proven lower bound of a linear cost over all alternatives, within ``gap`` of the minimum."""
        if not self._nullity:
            return float(cost @ self.inside)
        self._programs = self._programs or RowPrograms(self.inside, self._kept)
        optimum = self._programs.minimise(cost)
        self._seen.append(optimum.point)
        self.gap = max(self.gap, optimum.value - optimum.bound)
        return optimum.bound

    def lower(self) -> Float[Tensor, " seen"]:
        """Return the least value of each weight; one that some alternative has at zero needs no program of its own."""
        lo = torch.where(self._movable, 0.0, self.inside)
        zero = torch.stack(self._seen).amin(0) <= 0
        for key in torch.nonzero(self._movable & ~zero).flatten().tolist():
            if not zero[key]:
                lo[key] = min(max(self.least(self._unit(key)), 0.0), float(self.inside[key]))
                zero |= self._seen[-1] <= 0
        return lo

    def ends(self) -> Ends:
        """Return the least and the greatest value of each weight, by programs that run together."""
        if not self._nullity:
            return self.inside.clone(), self.inside.clone()
        programs = SharedPrograms(self._kept)
        hi = torch.maximum(self._together(programs, self._movable, -1.0), self.inside)
        open_ = self._movable & ~(torch.stack(self._seen).amin(0) <= 0)
        lo = torch.minimum(self._together(programs, open_, 1.0).clamp_min(0.0), self.inside)
        return torch.where(self._movable & ~open_, 0.0, lo), hi

    def _together(
        self, programs: SharedPrograms, keys: Bool[Tensor, " seen"], sign: float
    ) -> Float[Tensor, " seen"]:
        """Return a bound of each weight: the least, or with the sign -1 the greatest; the weight on other keys."""
        costs = sign * torch.diag(self.inside.new_ones(len(self.inside)))[keys]
        optima = programs.minimise(costs, self.inside.expand(len(costs), -1))
        self._seen += optima.points.unbind()
        self.gap = max(self.gap, optima.gap)
        return self.inside.masked_scatter(keys, sign * optima.bounds)

    def greatest(self, key: int) -> float:
        """Return the greatest value of the weight of one visible key, given by its position."""
        place = int((self.keys == key).nonzero())
        return self._greatest(place) if self._movable[place] else float(self.inside[place])

    def _greatest(self, place: int) -> float:
        return max(-self.least(-self._unit(place)), float(self.inside[place]))

    def order(self, ends: Ends) -> Bool[Tensor, "seen seen"]:
        """Return which key stands above which in every alternative, given the ends of the intervals."""
        lo, hi = ends
        above = lo[:, None] > hi[None, :] + ORDER_MARGIN
        seen = torch.stack(self._seen)
        open_ = (self.inside[:, None] > self.inside[None, :] + ORDER_MARGIN) & ~above
        for key in range(len(self.inside)):
            open_[key] &= (seen[:, key, None] > seen + ORDER_MARGIN).all(0)
        for j, k in torch.nonzero(open_).tolist():
            if open_[j, k] and self._apart(j, k):
                above[j, k] = True
            elif open_[j, k]:
                last = self._seen[-1]
                open_ &= last[:, None] > last[None, :] + ORDER_MARGIN
        return above

    def top(self, ends: Ends | None) -> int | None:
        """Return the position of the key that no alternative puts second; the ends spare programs where given."""
        first = int(self.inside.argmax())
        rivals = torch.ones(len(self.inside), dtype=torch.bool)
        rivals[first] = False
        if ends is not None:
            lo, hi = ends
            rivals &= hi >= lo[first] - ORDER_MARGIN
        seen = torch.stack(self._seen)
        if not (seen[:, first, None] > seen[:, rivals] + ORDER_MARGIN).all():
            return None
        apart = all(self._apart(first, rival) for rival in torch.nonzero(rivals).flatten().tolist())
        return int(self.keys[first]) if apart else None

    def _apart(self, j: int, k: int) -> bool:
        return self.least(self._unit(j) - self._unit(k)) > ORDER_MARGIN

    def _unit(self, key: int) -> Tensor:
        unit = torch.zeros_like(self.inside)
        unit[key] = 1.0
        return unit
