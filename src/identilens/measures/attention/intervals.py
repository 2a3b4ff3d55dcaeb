"""What is certain about each attention weight: its interval, and the proven order of keys."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import HeadValues, SimplexSpace
from identilens.measures.attention.row_programs import (
    ORDER_MARGIN,
    PAIRS,
    Ends,
    RowPrograms,
    filled,
    solver_of,
)

Row = Float[Tensor, " key"]
"""A number of each key: one row of a map."""

POINT = 1e-6
"""An interval narrower than this is a point."""


@dataclass(frozen=True)
class AttentionIntervals:
    """The range of each weight over all distributions with the same output.

    Attributes:
        weights: a, float64.
        lo: Proven lower bound of each weight over all alternatives, within ``gap`` of the true minimum.
        hi: Proven upper bound, within ``gap`` of the true maximum.
        nullity: Simplex nullity of the row. 0 means that every interval is a point.
        gap: Largest distance between a bound and an alternative that was found.
        tolerance: Changes of the output up to this share of its length count as none.
        rank_tolerance: Share of σ_max(T) below which a direction of T counts as zero.
    """

    weights: Row
    lo: Row
    hi: Row
    nullity: int
    gap: float
    tolerance: float
    rank_tolerance: float


@dataclass(frozen=True)
class RowCertificate:
    """Intervals of a row, and the order of keys that is the same in every alternative.

    Attributes:
        intervals: The range of each weight.
        above: [j, k] True where a'_j > a'_k in every alternative; None if not asked for.
        top: The key that is first in every alternative, or None.
    """

    intervals: AttentionIntervals
    above: Bool[Tensor, "key key"] | None
    top: int | None


def attention_intervals(
    weights_row: Row,
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, " key"] | None = None,
    tolerance: float = 0.0,
) -> AttentionIntervals:
    """Return [lo_j, hi_j] = min, max of a'_j over the alternatives of the row, for every key.

    Alternatives are {a' >= 0, Σ a' = Σ a, ‖(a' − a) T‖ <= tolerance ‖a T‖}: the same output, or nearly. Up to two
    programs per key, all maxima together and then all minima. A minimum is known without a program if
    the weight is zero in some alternative found before. The ends are the programs' dual bounds: no alternative is
    outside the interval, and the weight itself is inside. The row sees the ``visible`` keys (default: all).

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import attention_intervals
        >>> T, row = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([0.1, 0.1, 0.8])
        >>> found = attention_intervals(row, T)
        >>> [f"{lo:.2f} to {hi:.2f}" for lo, hi in zip(found.lo, found.hi)]
        ['0.00 to 0.50', '0.00 to 0.50', '0.00 to 1.00']

    Raises:
        InputError: Weights that are not a distribution over T's rows, or in half precision.
        NumericalError: A program whose answer cannot be certified.
    """
    row, space, programs = solver_of(weights_row, projected_values, visible, tolerance)
    return _intervals(row, space, programs.ends(), tolerance)


def certify_row(
    weights_row: Row,
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, " key"] | None = None,
    order: bool = True,
    tolerance: float = 0.0,
) -> RowCertificate:
    """Return intervals, certified order and certified top of one row; alternatives are found only once.

    Pairs of keys are certified only with ``order``: a'_j > a'_k in every alternative if min (a'_j − a'_k) > 0. A pair
    needs no program if the intervals do not overlap, or if an alternative found before reverses its order. At most n²/2
    programs, and n − 1 for the top alone. Other arguments and errors are those of `attention_intervals`.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import certify_row
        >>> T, row = torch.tensor([[0.0], [1.0], [2.0], [9.0]]), torch.tensor([0.1, 0.1, 0.1, 0.7])
        >>> found = certify_row(row, T)
        >>> found.top, found.above[3].tolist()
        (3, [True, True, True, False])
    """
    row, space, programs = solver_of(weights_row, projected_values, visible, tolerance)
    ends = programs.ends()
    above = None
    if order:
        above = torch.zeros((len(row), len(row)), dtype=torch.bool, device=row.device)
        above[programs.keys[:, None], programs.keys] = _order(programs, ends)
    top = int(programs.top(ends))
    intervals = _intervals(row, space, ends, tolerance)
    return RowCertificate(intervals, above, None if top < 0 else top)


def _order(programs: RowPrograms, ends: Ends) -> Bool[Tensor, "seen seen"]:
    """Return which key of a row stands above which in every alternative."""
    above = ends.lo.mT > ends.hi + ORDER_MARGIN
    open_ = ~above
    for key in range(len(above)):
        open_[key] &= (ends.met[0, :, key, None] > ends.met[0] + ORDER_MARGIN).all(0)
    while len(pairs := open_.nonzero()[:PAIRS]):
        j, k = pairs.T
        optima = programs.optima(programs.units(j[None]) - programs.units(k[None]))
        above[j, k] = optima.bounds[0] > ORDER_MARGIN
        open_[j, k] = False
        for point in optima.points[0]:
            open_ &= point[:, None] > point + ORDER_MARGIN
    return above


def _intervals(row: Row, space: SimplexSpace, ends: Ends, tolerance: float) -> AttentionIntervals:
    lo, hi = (filled(row, space, end[0]) for end in (ends.lo, ends.hi))
    gap = float(ends.gap)
    return AttentionIntervals(row, lo, hi, space.nullity, gap, tolerance, space.tolerance)
