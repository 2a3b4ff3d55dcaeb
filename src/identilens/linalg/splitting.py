"""Near optima of many cone programs over one set of keys by projections in turn, without equations to solve."""

from collections import deque

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg.columns import Columns

Points = Float[Tensor, "program key"]

_STEPS = (0.5, 60), (0.03, 20), (0.003, 20), (0.001, 20)
"""Sizes of the steps along the costs and how many are made: long ones find multipliers, short ones then a point.

Chosen on rows of the bundled encoder with all heads of a layer (1,320 keys) at changes of 0.4 to 10 % of the output.
"""
_FURTHER = 1.6
_LAST = 10
"""Rounds of the first size whose multipliers are averaged: bounds are concave in them."""
_NEWTON = 8
_LEVELS = 4


def split(
    costs: Points,
    rows: Points,
    columns: Columns,
    reach: Float[Tensor, "program rho"],
) -> tuple[Points, Float[Tensor, "program rho"]]:
    """Return points and multipliers near the optima of `SharedPrograms`, for costs of size one.

    Douglas and Rachford's method (Eckstein and Bertsekas 1992) with two projections: on the products of simplices, and
    on {x : xᵀ B in the ellipsoid around aᵀ B}. B has orthonormal columns, so that all of a round are two products with
    B for all programs. The second projection moves a point by −τ B y, and y are the multipliers. Nothing is certified,
    so that products in single precision do.
    """
    single = columns.to(torch.float32)
    costs, rows = (single.by_row(one.float()) for one in (costs, rows))
    centre, sums = single.onto(rows), rows.sum(-1, keepdim=True)
    state = nearest = points = rows
    size, found, level = _STEPS[0][0], deque(maxlen=_LAST), rows.new_zeros(())
    for step, rounds in _STEPS:
        state = nearest + (state - nearest) * (step / size)
        size = step
        for _ in range(rounds):
            moved = state - step * costs
            level = _level(moved, sums, level)
            points = (moved - level).clamp_min(0.0)
            reflected = 2 * points - state
            outside = single.onto(reflected) - centre
            change = _in_ellipsoid(outside.double(), reach).float() - outside
            nearest = reflected + single.across(change)
            state = state + _FURTHER * (nearest - points)
            if step == _STEPS[0][0]:
                found.append(change / step)
    multipliers = torch.stack(list(found)).mean(0)
    return points.transpose(0, 1).flatten(1).double(), multipliers.double()


def _level(
    points: Float[Tensor, "row program key"],
    sums: Float[Tensor, "row program 1"],
    start: Float[Tensor, "..."],
) -> Float[Tensor, "row program 1"]:
    """Return t with Σ max(x − t, 0) as large as the sums, by Newton's method: x − t, cut at zero, is x's projection."""
    highest = points.amax(-1, keepdim=True)
    level = torch.minimum(start, highest - sums / points.shape[-1])
    for _ in range(_LEVELS):
        above = (points - level).clamp_min_(0.0)
        level = level + (above.sum(-1, keepdim=True) - sums) / above.count_nonzero(-1)[
            ..., None
        ].clamp_min(1)
    return level


def _in_ellipsoid(
    points: Float[Tensor, "program rho"], reach: Float[Tensor, "program rho"]
) -> Float[Tensor, "program rho"]:
    """Return the nearest points with ‖x / reach‖ <= 1, by Newton's method on 1 / ‖x / reach‖ as for trust regions."""
    inverse = torch.where(reach > 0, 1 / reach, 0.0)
    penalty = torch.zeros_like(points[:, :1])
    for _ in range(_NEWTON):
        shrunk = 1 + penalty * inverse.square()
        along = points * inverse / shrunk
        square = along.square().sum(1, keepdim=True)
        slope = (along.square() * inverse.square() / shrunk).sum(1, keepdim=True)
        step = square * (square.sqrt() - 1) / slope.clamp_min(torch.finfo(points.dtype).tiny)
        penalty = (penalty + step).clamp_min(0.0)
    return torch.where(reach > 0, points / (1 + penalty * inverse.square()), 0.0)
