"""How much of a row of attention weights is determined: certain mass, and intervals of linear functionals."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from identilens.errors import InputError
from identilens.linalg import HeadValues, ProjectedValues, SimplexSpace, head_values
from identilens.linalg.checks import check_finite
from identilens.linalg.interior import Optima, SharedPrograms
from identilens.linalg.memory import blocks
from identilens.linalg.simplex import row_space
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.row_programs import (
    ALMOST_ZERO,
    allowed_change,
    movable_keys,
    solver_of,
)

Map = Float[Tensor, "row key"]
"""A number of each key in each row."""

_DRAWN, _FEW = 4, 64
"""Programs of a row with random costs, and programs that take no longer together than a few that might spare some."""

Seen = Float[Tensor, "head row seen"]


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
    allowed, lower = allowed_change(rows, T, tolerance), torch.zeros_like(rows)
    for space, some, keys in shared_spaces(T.of_heads(), len(rows), visible):
        cells = some[..., None], keys
        lower[cells], _ = least_weights(space, rows[cells], allowed[some])
    return lower


def shared_spaces(
    T: ProjectedValues, rows: int, visible: Bool[Tensor, "query key"] | None
) -> Iterator[tuple[SimplexSpace, Int[Tensor, "mask row"], Int[Tensor, " key"]]]:
    """Yield the spaces of rows in all heads, head by head: of so many masks together as fit, and the rows of each.

    They are on the keys that these rows see. Rows that see the same keys have one space.
    """
    heads, keys, rank = T.compact.shape
    if visible is None:
        visible = T.compact.new_ones(rows, keys, dtype=torch.bool)
    masks, which = visible.unique(dim=0, return_inverse=True)
    sizes = which.bincount()
    for size in sizes.unique().tolist():
        alike = (sizes == size).nonzero()[:, 0]
        for part in blocks(len(alike), 4 * heads * keys * rank**2, masks.device):
            chosen = masks[alike[part]]
            index = chosen.any(0).nonzero()[:, 0]
            chosen = chosen[:, index]
            compact = T.compact[:, None, index].expand(-1, len(chosen), -1, -1).flatten(0, 1)
            limits = T.tolerance_of(chosen.sum(1)).repeat(heads)
            space = row_space(compact, chosen.repeat(heads, 1), limits)
            yield space, (which == alike[part, None]).nonzero()[:, 1].view(-1, size), index


def least_weights(
    space: SimplexSpace, inside: Seen, allowed: Float[Tensor, "head row"]
) -> tuple[Seen, Seen]:
    """Return the least value of each weight over all alternatives of its row (`certain_weights`), and its slope.

    What is feasible for the dual of a program depends on its key and not on the changes of the output that are allowed.
    So the multipliers that prove the least weight of a key prove a bound for every tolerance: it falls at most by the
    slope times the length of a change that is allowed.

    Where a head has many programs, those with costs drawn at random meet alternatives with little on all keys first. A
    weight that none of them has at zero gets a program of its own.
    """
    count, keys = inside.shape[1:]
    scales = space.scales[:, None]
    reach = allowed[..., None] / scales
    movable = movable_keys(space, allowed.amax(-1))[:, None]
    lo = torch.where(movable, 0.0, inside)
    # A weight that never moves is a mixture of the outputs and of the sum: its row of B proves that.
    slopes = torch.linalg.vector_norm(space.kept / scales, dim=-1)[:, None] * ~movable
    slopes = slopes.repeat(1, count, 1)
    open_ = movable & (inside > ALMOST_ZERO)
    each = 8 * (2 * space.rank**2 + 8 * keys)

    def solved(heads: Tensor, costs: Tensor, row: Tensor) -> Optima:
        rows = (part[heads].take_along_dim(row[..., None], 1) for part in (inside, reach))
        return SharedPrograms(space.kept[heads]).minimise(costs, *rows)

    # Costs of programs that look for alternatives with little on all keys; their optima are single points.
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(_DRAWN, keys, generator=generator, dtype=torch.float64).to(inside)
    every = torch.arange(count, device=inside.device).repeat_interleave(_DRAWN)[None]
    crowded = (open_.sum((1, 2)) > _FEW).nonzero()[:, 0]
    for part in blocks(len(crowded), each * _DRAWN * count, inside.device):
        heads = crowded[part]
        points = solved(heads, drawn.repeat(count, 1).expand(len(heads), -1, -1), every).points
        open_[heads] &= points.unflatten(1, (-1, _DRAWN)).amin(2) > ALMOST_ZERO
    counts, asking = open_.sum((1, 2)).sort(descending=True)
    for part in blocks(int((counts > 0).sum()), each * int(counts[0]), inside.device):
        heads, most = asking[part], int(counts[part.start])
        # A head with fewer programs repeats its first.
        asked = open_[heads].flatten(1)
        cells = asked.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        cells = cells.where(asked.gather(1, cells), cells[:, :1])
        optima = solved(heads, one_hot(cells % keys, keys).to(inside.dtype), cells // keys)
        slope = torch.linalg.vector_norm(optima.multipliers / scales[heads], dim=-1)
        for full, ends in ((lo, optima.bounds), (slopes, slope)):
            full[heads] = full[heads].flatten(1).scatter(1, cells, ends).view(-1, count, keys)
    return torch.minimum(lo, inside), slopes


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
    row, space, programs = solver_of(weights_row, projected_values, visible, tolerance)
    costs = coefficients.detach().double()
    check_finite(coefficients=costs)
    if costs.ndim != 2 or costs.shape[1] != len(row):
        raise InputError(
            f"expected coefficients of shape (functional, {len(row)}), one for each key; got {tuple(costs.shape)}; "
            "pass one row for each functional (coefficients[None] for a single one)."
        )
    costs = costs[:, programs.keys]
    (lo,), (hi,), gaps = programs.between(costs[None])
    gap = float(gaps.max()) if len(costs) else 0.0
    return FunctionalIntervals(costs @ programs.inside[0], lo, hi, space.nullity, gap)
