"""What is certain about each attention weight: its interval."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import HeadValues
from identilens.measures.attention.row_programs import solver_of

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
    ends = programs.ends()
    lo, hi = torch.zeros_like(row), torch.zeros_like(row)
    lo[programs.keys], hi[programs.keys] = ends.lo[0], ends.hi[0]
    gap = float(ends.gap)
    return AttentionIntervals(row, lo, hi, space.nullity, gap, tolerance, space.tolerance)
