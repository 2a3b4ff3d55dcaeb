"""How much of a row of attention weights is determined: certain mass, and intervals of linear functionals."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import one_hot

from identilens.errors import InputError
from identilens.linalg import HeadValues, ProjectedValues, SimplexSpace, head_values
from identilens.linalg.checks import check_finite
from identilens.linalg.interior import SharedPrograms
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.row_solver import (
    ALMOST_ZERO,
    NUMBERS,
    RowSolver,
    allowed_change,
    filled,
    movable_keys,
    row_and_space,
)

Map = Float[Tensor, "row key"]
"""A number of each key in each row."""

_DRAWN, _FEW = 4, 64
"""Programs of a row with random costs, and programs that take no longer together than a few that might spare some."""

Lower = Float[Tensor, "row seen"]


class MapSolver:
    """Programs over the alternatives of rows that share a space, on its visible keys only.

    What is feasible for the dual of a program depends on its key and not on the changes of the output that are allowed.
    So the multipliers that prove the least weight of a key prove a bound for every tolerance.
    """

    def __init__(self, space: SimplexSpace):
        self._space = space
        self._kept = space.kept[space.visible].cpu()
        self._scales = space.scales.cpu()
        self._programs = SharedPrograms(self._kept)

    def lower(self, rows: Map, allowed: Float[Tensor, " row"]) -> tuple[Lower, Lower]:
        """Return the least value of each weight over all alternatives of its row, and its slope.

        It falls at most so fast with the length of a change of the output that is allowed. Where programs are many,
        those with costs drawn at random meet alternatives with little on all keys first. A weight that none of them has
        at zero gets a program of its own.
        """
        inside, reach = self.seen(rows), allowed[:, None].cpu() / self._scales
        keys = inside.shape[1]
        movable, many = movable_keys(self._space, float(allowed.max())), NUMBERS // keys + _DRAWN
        lo = torch.where(movable, 0.0, inside)
        # A weight that never moves is a mixture of the outputs and of the sum: its row of B proves that.
        slopes = torch.linalg.vector_norm(self._kept / self._scales, dim=1) * ~movable
        slopes = slopes.repeat(len(rows), 1)
        open_ = movable & (inside > ALMOST_ZERO)
        crowded = open_.any(1) & (open_.sum() > _FEW)
        for part in torch.nonzero(crowded)[:, 0].split(many // _DRAWN):
            drawn = part.repeat_interleave(_DRAWN)
            costs = _random_costs(keys).repeat(len(part), 1)
            points = self._programs.minimise(costs, inside[drawn], reach[drawn]).points
            open_[part] &= points.unflatten(0, (-1, _DRAWN)).amin(1) > ALMOST_ZERO
        for part in torch.nonzero(open_).split(many):
            row, key = part.T
            costs = one_hot(key, keys).to(inside.dtype)
            optima = self._programs.minimise(costs, inside[row], reach[row])
            lo[row, key] = optima.bounds
            slopes[row, key] = torch.linalg.vector_norm(optima.multipliers / self._scales, dim=1)
        return torch.minimum(lo, inside), slopes

    def greatest(self, rows: Map, functional: Float[Tensor, " key"]) -> Float[Tensor, " row"]:
        """Return the greatest value of a functional of each row where its output stays the same exactly."""
        inside, cost = self.seen(rows), functional[self._space.visible].cpu()
        if not movable_keys(self._space, 0.0).any():
            return inside @ cost
        bounds = self._programs.minimise(-cost.expand_as(inside), inside).bounds
        return torch.maximum(-bounds, inside @ cost)

    def filled(self, seen: Lower) -> Map:
        """Return rows with these numbers on their visible keys, and 0 on hidden ones."""
        visible = self._space.visible
        rows = torch.zeros(len(seen), len(visible), dtype=seen.dtype, device=visible.device)
        return filled(rows, self._space, seen)

    def seen(self, rows: Map) -> Lower:
        """Return rows on their visible keys."""
        return rows[:, self._space.visible].cpu()


def _random_costs(keys: int) -> Float[Tensor, "program key"]:
    """Return costs of programs that look for alternatives with little on all keys; their optima are single points."""
    return torch.rand(_DRAWN, keys, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@dataclass(frozen=True)
class FunctionalIntervals:
    """The ranges of linear functionals of a row over all distributions with the same output.

    Attributes:
        value: c·a of the row's own weights.
        lo: Proven lower bound of c·a' over all alternatives, within ``gap`` of the true minimum.
        hi: Proven upper bound, within ``gap`` of the true maximum.
        nullity: Simplex nullity of the row: 0 means that every functional is a point.
        gap: Largest distance between a bound and an alternative that was found.
    """

    value: Float[Tensor, " functional"]
    lo: Float[Tensor, " functional"]
    hi: Float[Tensor, " functional"]
    nullity: int
    gap: float


def certain_mass(
    weights: Float[Tensor, "query key"],
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    tolerance: float = 0.0,
) -> Float[Tensor, " query"]:
    """Return Σ_j lo_j of each row: the attention that has the same place in every alternative, in [0, 1].

    lo_j = min a'_j over the alternatives {a' >= 0, Σ a' = Σ a, ‖(a' − a) T‖ <= tolerance ‖a T‖}: those with the same
    output, or with a tolerance above 0 with nearly the same. Every alternative has at least lo_j on key j, so its total
    variation distance from a is at most Σ_j (a_j − lo_j) = 1 − certain mass. 1 means that the output determines the
    row. 0 means that each single weight can be zero. A linear program, or a cone program, is solved for each weight
    that is not zero in any alternative found so far. lo_j is its dual bound: the sum is never too large.
    Rows that sum to 1 up to rounding are divided by their sum.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import certain_mass
        >>> T = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
        >>> row = torch.tensor([[0.2, 0.2, 0.2, 0.4]])
        >>> certain_mass(row, T), certain_mass(row, T, tolerance=0.1)
        (tensor([0.3143], dtype=torch.float64), tensor([0.2543], dtype=torch.float64))

    Raises:
        InputError: Weights that are not distributions over T's rows, or a negative tolerance.
        NumericalError: A program whose answer cannot be certified.
    """
    lower = certain_weights(weights, projected_values, visible=visible, tolerance=tolerance)
    return lower.sum(-1).clamp_max(1.0)


def certain_weights(
    weights: Float[Tensor, "query key"],
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    tolerance: float = 0.0,
) -> Float[Tensor, "query key"]:
    """Return lo_j of each weight, its least value in any distribution with the same output: see `certain_mass`.

    Examples:
        >>> certain_weights(torch.tensor([[0.2, 0.2, 0.2, 0.4]]), torch.tensor([[0.0], [1.0], [2.0], [9.0]]))
        tensor([[0.0000, 0.0000, 0.0000, 0.3143]], dtype=torch.float64)

    Raises:
        InputError: Weights that are not distributions over T's rows.
        NumericalError: A program whose answer cannot be certified.
    """
    T = head_values(projected_values)
    rows = checked_weights(weights, T, visible)
    allowed, found = allowed_change(rows, T, tolerance), torch.zeros_like(rows)
    for solver, places in map_solvers(T, len(rows), visible):
        lower, _ = solver.lower(rows[places], allowed[places])
        found[places] = solver.filled(lower)
    return found


def functional_interval(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    coefficients: Float[Tensor, "functional key"],
    *,
    visible: Bool[Tensor, " key"] | None = None,
    tolerance: float = 0.0,
) -> FunctionalIntervals:
    """Return [min, max] of c·a' over the alternatives of `certain_mass` for each row c of coefficients.

    Ones on a group of keys (special tokens, a sentence, a span) give the mass on the group. It can be certain even if
    the single weights are not. 1 and −1 on two keys give the difference of their weights; ‖t_j‖ gives a norm-weighted
    sum. Two programs per functional. Bounds are valid for any coefficients;
    ``gap`` grows with the largest coefficient.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import functional_interval
        >>> T, row = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([0.1, 0.2, 0.7])
        >>> found = functional_interval(row, T, torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
        >>> [f"{lo:.2f} to {hi:.2f}" for lo, hi in zip(found.lo, found.hi)]
        ['0.10 to 1.00', '-0.10 to -0.10']

    Raises:
        InputError: Weights that are not a distribution over T's rows, or coefficients of other keys.
        NumericalError: NaN or infinite coefficients, or a program whose answer cannot be certified.
    """
    row, space = row_and_space(weights_row, projected_values, visible)
    costs = coefficients.detach().double()
    check_finite(coefficients=costs)
    if costs.ndim != 2 or costs.shape[1] != len(row):
        raise InputError(
            f"expected coefficients of shape (functional, {len(row)}), one for each key; got {tuple(costs.shape)}; "
            "pass one row for each functional (coefficients[None] for a single one)."
        )
    allowed = allowed_change(row[None], head_values(projected_values), tolerance)
    solver = RowSolver(row, space, float(allowed))
    seen = costs[:, space.visible].cpu()
    optima = solver.optima(torch.cat([seen, -seen]))
    least, minus_greatest = optima.bounds.chunk(2)
    value = seen @ solver.inside
    lo, hi = torch.minimum(least, value), torch.maximum(-minus_greatest, value)
    return FunctionalIntervals(value, lo, hi, space.nullity, optima.gap)


def map_solvers(
    T: ProjectedValues, rows: int, visible: Bool[Tensor, "query key"] | None
) -> Iterator[tuple[MapSolver, list[int]]]:
    """Yield the programs of rows that see the same keys, with the numbers of these rows."""
    found: dict[int, list[int]] = {}
    spaces = T.simplex_spaces(rows, visible)
    for row, space in enumerate(spaces):
        found.setdefault(id(space), []).append(row)
    for places in found.values():
        yield MapSolver(spaces[places[0]]), places
