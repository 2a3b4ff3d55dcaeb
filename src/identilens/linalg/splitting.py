"""Near optima of many cone programs over one set of keys by projections in turn, without equations to solve."""

from collections import deque

import torch
from jaxtyping import Float
from torch import Tensor

Points = Float[Tensor, "program key"]

_STEPS = (0.5, 60), (0.03, 20), (0.003, 20), (0.001, 20)
"""Sizes of the steps along the costs and how many are made: long ones find multipliers, short ones then a point.

Chosen on rows of the bundled encoder with all heads of a layer (1,320 keys) at changes of 0.4 to 10 % of the output.
"""
_FURTHER = 1.6
_LAST = 10
"""Rounds of the first size whose multipliers are averaged: bounds are concave in them."""
_NEWTON = 8


def split(
    costs: Points,
    rows: Points,
    kept: Float[Tensor, "key rho"],
    reach: Float[Tensor, "program rho"],
    blocks: int,
) -> tuple[Points, Float[Tensor, "program rho"]]:
    """Return points and multipliers near the optima of `SharedPrograms`, for costs of size one.

    Douglas and Rachford's method (Eckstein and Bertsekas 1992) with two projections: on the products of simplices, and
    on {x : xᵀ B in the ellipsoid around aᵀ B}. B has orthonormal columns, so that all of a round are two products with
    B for all programs. The second projection moves a point by −τ B y, and y are the multipliers. Nothing is certified.
    """
    centre, sums = rows @ kept, rows.unflatten(1, (blocks, -1)).sum(2, keepdim=True)
    state = nearest = points = rows
    size, found = _STEPS[0][0], deque(maxlen=_LAST)
    for step, rounds in _STEPS:
        state = nearest + (state - nearest) * (step / size)
        size = step
        for _ in range(rounds):
            moved = (state - step * costs).unflatten(1, (blocks, -1))
            points = _on_simplices(moved, sums).flatten(1)
            reflected = 2 * points - state
            outside = reflected @ kept - centre
            change = _in_ellipsoid(outside, reach) - outside
            nearest = reflected + change @ kept.mT
            state = state + _FURTHER * (nearest - points)
            if step == _STEPS[0][0]:
                found.append(change / step)
    return points, torch.stack(list(found)).mean(0)


def _on_simplices(
    points: Float[Tensor, "program block key"], sums: Float[Tensor, "program block 1"]
) -> Float[Tensor, "program block key"]:
    """Return the nearest points with no entry below zero and these sums (Held, Wolfe and Crowder 1974)."""
    ordered = points.sort(-1, descending=True).values
    over = (ordered.cumsum(-1) - sums) / torch.arange(1, points.shape[-1] + 1)
    last = (ordered > over).sum(-1, keepdim=True).clamp_min(1) - 1
    return (points - over.gather(-1, last)).clamp_min(0.0)


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
