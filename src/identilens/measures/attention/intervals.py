"""What is certain about each attention weight: intervals, pinned weights and proven order."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import HeadValues, ProjectedValues, SimplexSpace, head_values
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

    Args:
        weights_row: a, one row of attention weights.
        projected_values: T.
        visible: True on the keys the row may use; all when left out.
        pin_tolerance: Width up to which a weight counts as pinned.

    Raises:
        InputError: Weights that are no distribution over T's rows.
        NumericalError: A program whose answer cannot be certified.
    """
    row, space = _prepared(weights_row, projected_values, visible)
    return _RowSolver(row, space).intervals(pin_tolerance)


def certify_row(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, " key"] | None = None,
    pin_tolerance: float = PIN_TOLERANCE,
) -> RowCertificate:
    """Return intervals, certified order and certified top of one row, sharing the programs' vertices.

    Args:
        weights_row: a.
        projected_values: T.
        visible: True on the keys the row may use.
        pin_tolerance: Width up to which a weight counts as pinned.
    """
    row, space = _prepared(weights_row, projected_values, visible)
    solver = _RowSolver(row, space)
    intervals = solver.intervals(pin_tolerance)
    above = solver.order(intervals)
    return RowCertificate(intervals=intervals, above=above, top=solver.top(intervals))


def certified_order(
    weights_row: Float[Tensor, " key"], projected_values: HeadValues, *, visible: Bool[Tensor, " key"] | None = None
) -> list[tuple[int, int]]:
    """Return the pairs (j, k) with a'_j > a'_k in every alternative: min (a'_j − a'_k) > 0.

    Only visible keys take part. A pair is settled without a program when the intervals are apart or
    when some alternative already seen reverses it; at worst n²/2 programs.

    Args:
        weights_row: a.
        projected_values: T.
        visible: True on the keys the row may use.
    """
    above = certify_row(weights_row, projected_values, visible=visible).above
    return [(j, k) for j, k in torch.nonzero(above).tolist()]


def certified_top(
    weights_row: Float[Tensor, " key"], projected_values: HeadValues, *, visible: Bool[Tensor, " key"] | None = None
) -> int | None:
    """Return the key that stays first in every alternative, or None: at most n − 1 programs.

    Args:
        weights_row: a.
        projected_values: T.
        visible: True on the keys the row may use.
    """
    row, space = _prepared(weights_row, projected_values, visible)
    return _RowSolver(row, space).top(None)


def minimum_norm_alternative(
    weights_row: Float[Tensor, " key"], projected_values: HeadValues, *, visible: Bool[Tensor, " key"] | None = None
) -> LeastNorm:
    """Return the distribution of least norm with the same output, with its duality gap.

    The alternative to effective attention that stays on the simplex, asked for at the end of Brunner et
    al. 2020, 3.4. Unlike effective attention it is not orthogonal to LN(T).

    Args:
        weights_row: a.
        projected_values: T.
        visible: True on the keys the row may use.
    """
    row, space = _prepared(weights_row, projected_values, visible)
    found = least_norm(row[space.visible], space.kept[space.visible])
    whole = torch.zeros_like(row)
    whole[space.visible] = found.point.to(row.device)
    return LeastNorm(point=whole, gap=found.gap, error=found.error)


def _prepared(
    weights_row: Tensor, projected_values: Tensor | ProjectedValues, visible: Tensor | None
) -> tuple[Tensor, SimplexSpace]:
    T = head_values(projected_values)
    row = checked_weights(weights_row[None], T, None if visible is None else visible[None])
    return row[0], T.simplex_space(visible)


class _RowSolver:
    """The programs of one row and the alternatives they came by."""

    def __init__(self, row: Tensor, space: SimplexSpace):
        self.row, self.space = row, space
        self.keys = torch.nonzero(space.visible).flatten().tolist()
        self.inside = row[space.visible].cpu()
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
        """Bound every weight from both sides."""
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
        whole_lo, whole_hi = self.row.clone(), self.row.clone()
        whole_lo[self.space.visible] = lo.to(self.row.device)
        whole_hi[self.space.visible] = hi.to(self.row.device)
        return AttentionIntervals(
            weights=self.row,
            lo=whole_lo,
            hi=whole_hi,
            pinned=whole_hi - whole_lo <= pin_tolerance,
            nullity=self.space.nullity,
            gap=gap,
            tolerance=self.space.tolerance,
            pin_tolerance=pin_tolerance,
        )

    def order(self, intervals: AttentionIntervals) -> Tensor:
        """Decide every pair of visible keys."""
        lo, hi = (end[self.space.visible].cpu() for end in (intervals.lo, intervals.hi))
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
        keys = torch.tensor(self.keys)
        whole[keys[:, None], keys[None, :]] = above
        return whole.to(self.row.device)

    def top(self, intervals: AttentionIntervals | None) -> int | None:
        """Return the key that no alternative puts second."""
        first = int(self.inside.argmax())
        rivals = torch.ones(len(self.inside), dtype=torch.bool)
        rivals[first] = False
        if intervals is not None:
            lo, hi = (end[self.space.visible].cpu() for end in (intervals.lo, intervals.hi))
            rivals &= hi >= lo[first] - ORDER_MARGIN
        seen = torch.stack(self.seen)
        if not (seen[:, first, None] > seen[:, rivals] + ORDER_MARGIN).all():
            return None
        for rival in torch.nonzero(rivals).flatten().tolist():
            if not self._apart(first, rival):
                return None
        return self.keys[first]

    def _apart(self, j: int, k: int) -> bool:
        cost = torch.zeros_like(self.inside)
        cost[j], cost[k] = 1.0, -1.0
        return self.least(cost)[0] > ORDER_MARGIN
