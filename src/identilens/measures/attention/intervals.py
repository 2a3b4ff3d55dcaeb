"""What is certain about each attention weight: intervals, pinned weights and proven order."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.linalg.programs import LeastNorm, RowPrograms, least_norm
from identilens.measures.attention.checks import checked_weights

PIN_TOLERANCE = 1e-6
"""A weight whose interval is narrower than this is pinned."""

ORDER_MARGIN = 1e-9
"""A key is certified above another only when every alternative keeps them this far apart."""


@dataclass(frozen=True)
class AttentionIntervals:
    """The range of each weight over all distributions with the same output.

    Attributes:
        weights: a, float64.
        lo: Proven lower bound of each weight over all alternatives, within ``gap`` of the true minimum.
        hi: Proven upper bound, within ``gap`` of the true maximum.
        pinned: True where ``hi − lo`` is at most ``pin_tolerance`` (always so on hidden keys).
        nullity: Simplex nullity of the row: 0 means that every weight is a point.
        gap: Largest distance between a bound and an alternative that was found.
        tolerance: Share of σ_max(T) below which T's directions were ignored.
        pin_tolerance: Width up to which a weight counts as pinned.
    """

    weights: Float[Tensor, " key"]
    lo: Float[Tensor, " key"]
    hi: Float[Tensor, " key"]
    pinned: Bool[Tensor, " key"]
    nullity: int
    gap: float
    tolerance: float
    pin_tolerance: float


@dataclass(frozen=True)
class RowCertificate:
    """Intervals of a row together with the order that every alternative keeps.

    Attributes:
        intervals: The range of each weight.
        above: [j, k] True where a'_j > a'_k in every alternative.
        top: The key that is first in every alternative, or None.
    """

    intervals: AttentionIntervals
    above: Bool[Tensor, "key key"]
    top: int | None


def attention_intervals(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, " key"] | None = None,
    pin_tolerance: float = PIN_TOLERANCE,
) -> AttentionIntervals:
    """Return [lo_j, hi_j] = min, max of a'_j over {a' >= 0, a'[T, 1] = a[T, 1]} for every key.

    Up to two linear programs a key, each from the last one's basis; a minimum is skipped where some
    vertex has the weight at zero. The ends are the programs' dual bounds: no alternative lies outside
    them, and the weight itself lies inside.
    The row may use the ``visible`` keys, all when left out; a weight is pinned up to a width of ``pin_tolerance``.

    Raises:
        InputError: Weights that are no distribution over T's rows, or in half precision.
        NumericalError: A program whose answer cannot be certified.
    """
    return _RowSolver(weights_row, projected_values, visible).intervals(pin_tolerance)


def certify_row(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, " key"] | None = None,
    pin_tolerance: float = PIN_TOLERANCE,
) -> RowCertificate:
    """Return intervals, certified order and certified top of one row, sharing the programs' vertices.

    Takes and raises what `attention_intervals` does.
    """
    solver = _RowSolver(weights_row, projected_values, visible)
    intervals = solver.intervals(pin_tolerance)
    return RowCertificate(intervals, above=solver.order(intervals), top=solver.top(intervals))


def certified_order(
    weights_row: Float[Tensor, " key"], projected_values: HeadValues, *, visible: Bool[Tensor, " key"] | None = None
) -> list[tuple[int, int]]:
    """Return the pairs (j, k) with a'_j > a'_k in every alternative: min (a'_j − a'_k) > 0.

    Only visible keys take part. A pair is settled without a program when the intervals are apart or
    when some alternative already seen reverses it; at worst n²/2 programs.
    """
    above = certify_row(weights_row, projected_values, visible=visible).above
    return [(j, k) for j, k in torch.nonzero(above).tolist()]


def certified_top(
    weights_row: Float[Tensor, " key"], projected_values: HeadValues, *, visible: Bool[Tensor, " key"] | None = None
) -> int | None:
    """Return the key that stays first in every alternative, or None: at most n − 1 programs."""
    return _RowSolver(weights_row, projected_values, visible).top(None)


def minimum_norm_alternative(
    weights_row: Float[Tensor, " key"], projected_values: HeadValues, *, visible: Bool[Tensor, " key"] | None = None
) -> LeastNorm:
    """Return the distribution of least norm with the same output, with its duality gap.

    The alternative to effective attention that stays on the simplex, asked for at the end of Brunner et
    al. 2020, 3.4. Unlike effective attention it is not orthogonal to LN(T).
    """
    row, space = _prepared(weights_row, projected_values, visible)
    found = least_norm(row[space.visible], space.kept[space.visible])
    return replace(found, point=_filled(torch.zeros_like(row), space, found.point))


def _prepared(weights_row: Tensor, projected_values: HeadValues, visible: Tensor | None) -> tuple[Tensor, SimplexSpace]:
    T = head_values(projected_values)
    row = checked_weights(weights_row[None], T, None if visible is None else visible[None])
    return row[0], T.simplex_space(visible)


def _filled(row: Tensor, space: SimplexSpace, seen: Tensor) -> Tensor:
    """Return a row with other numbers on its visible keys."""
    return row.masked_scatter(space.visible, seen.to(row.device))


class _RowSolver:
    """The programs of one row and the alternatives they came by."""

    def __init__(self, weights_row: Tensor, projected_values: HeadValues, visible: Tensor | None):
        self.row, space = _prepared(weights_row, projected_values, visible)
        self.space, self.keys = space, torch.nonzero(space.visible).flatten().cpu()
        self.inside = self.row[space.visible].cpu()
        # Alternatives met so far, visible keys only: they settle programs before these are run.
        self.seen = [self.inside]
        self.programs = RowPrograms(self.inside, space.kept[space.visible].cpu()) if space.nullity else None

    def least(self, cost: Tensor) -> tuple[float, float]:
        """Return the proven lower bound of the cost and the value that an alternative reaches."""
        if self.programs is None:
            value = float(cost @ self.inside)
            return value, value
        optimum = self.programs.minimise(cost)
        self.seen.append(optimum.point)
        return optimum.bound, optimum.value

    def intervals(self, pin_tolerance: float) -> AttentionIntervals:
        lo, hi, gap = self.inside.clone(), self.inside.clone(), 0.0
        movable = torch.linalg.vector_norm(self.space.free[self.space.visible].cpu(), dim=1) > 0
        zero = self.inside == 0
        for sign in (-1.0, 1.0):
            for key in torch.nonzero(movable).flatten().tolist():
                if sign > 0 and zero[key]:
                    lo[key] = 0.0
                    continue
                cost = torch.zeros_like(self.inside)
                cost[key] = sign
                bound, value = self.least(cost)
                gap = max(gap, value - bound)
                zero |= self.seen[-1] <= 0
                if sign > 0:
                    lo[key] = min(max(bound, 0.0), float(lo[key]))
                else:
                    hi[key] = max(-bound, float(hi[key]))
        lo, hi = (_filled(self.row, self.space, end) for end in (lo, hi))
        pinned, space = hi - lo <= pin_tolerance, self.space
        return AttentionIntervals(self.row, lo, hi, pinned, space.nullity, gap, space.tolerance, pin_tolerance)

    def _ends(self, intervals: AttentionIntervals) -> list[Tensor]:
        return [end[self.space.visible].cpu() for end in (intervals.lo, intervals.hi)]

    def order(self, intervals: AttentionIntervals) -> Tensor:
        """Decide every pair of visible keys."""
        lo, hi = self._ends(intervals)
        above = lo[:, None] > hi[None, :] + ORDER_MARGIN
        seen = torch.stack(self.seen)
        open_ = (self.inside[:, None] > self.inside[None, :] + ORDER_MARGIN) & ~above
        for key in range(len(self.inside)):
            open_[key] &= (seen[:, key, None] > seen + ORDER_MARGIN).all(0)
        for j, k in torch.nonzero(open_).tolist():
            if open_[j, k] and self._apart(j, k):
                above[j, k] = True
            elif open_[j, k]:
                last = self.seen[-1]
                open_ &= last[:, None] > last[None, :] + ORDER_MARGIN
        whole = torch.zeros((len(self.row), len(self.row)), dtype=torch.bool)
        whole[self.keys[:, None], self.keys] = above
        return whole.to(self.row.device)

    def top(self, intervals: AttentionIntervals | None) -> int | None:
        """Return the key that no alternative puts second."""
        first = int(self.inside.argmax())
        rivals = torch.ones(len(self.inside), dtype=torch.bool)
        rivals[first] = False
        if intervals is not None:
            lo, hi = self._ends(intervals)
            rivals &= hi >= lo[first] - ORDER_MARGIN
        seen = torch.stack(self.seen)
        if not (seen[:, first, None] > seen[:, rivals] + ORDER_MARGIN).all():
            return None
        apart = all(self._apart(first, rival) for rival in torch.nonzero(rivals).flatten().tolist())
        return int(self.keys[first]) if apart else None

    def _apart(self, j: int, k: int) -> bool:
        cost = torch.zeros_like(self.inside)
        cost[j], cost[k] = 1.0, -1.0
        return self.least(cost)[0] > ORDER_MARGIN
