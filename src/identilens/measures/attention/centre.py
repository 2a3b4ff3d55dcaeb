"""The analytic centre of a row's alternatives, also for rows with zero weights."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import SimplexSpace
from identilens.linalg.programs import RowPrograms
from identilens.measures.attention.checks import checked_row

FLOOR = 1e-9
"""A weight that is below this in every alternative cannot change."""

MAX_STEPS = 200
FACE_ROUNDING = 1e-10
"""Singular values of the orthonormal B, restricted to the movable keys, up to this count as zero."""


@dataclass(frozen=True)
class Centre:
    """The analytic centre of a row's alternatives.

    Attributes:
        point: The centre: maximiser of Σ log x_j over the movable keys.
        movable: Keys whose weight is above ``FLOOR`` in some alternative.
        free: Orthonormal basis of the alternatives' directions; zero rows on the keys that cannot move.
        rounding: L with L Lᵀ = the Hessian of −Σ log x at the centre, in the coordinates of ``free``.
    """

    point: Float[Tensor, " key"]
    movable: Bool[Tensor, " key"]
    free: Float[Tensor, "key k"]
    rounding: Float[Tensor, "k k"]


def analytic_centre(weights_row: Float[Tensor, " key"], space: SimplexSpace) -> Centre:
    """Return the analytic centre of {x >= 0, x[T, 1] = a[T, 1]} of a row a.

    Zero weights (an underflowed softmax, a one-hot row) mean that a is on the boundary. Linear programs then find the
    keys that some alternative can use, and the centre is computed on that face. Damped Newton steps of cost O(n k²)
    for simplex nullity k.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import simplex_space
        >>> from identilens.measures.attention.centre import analytic_centre
        >>> T, row = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([0.1, 0.1, 0.8])
        >>> analytic_centre(row, simplex_space(T)).point
        tensor([0.3333, 0.3333, 0.3333], dtype=torch.float64)

    Raises:
        InputError: Weights that are not a distribution over the space's keys, or in half precision.
    """
    start, movable = _relative_interior(checked_row(weights_row, space), space)
    free = _face_directions(space, movable)
    point, rounding = _newton(start, free, movable)
    return Centre(point=point, movable=movable, free=free, rounding=rounding)


def _relative_interior(weights_row: Tensor, space: SimplexSpace) -> tuple[Tensor, Tensor]:
    """Return a feasible point that is positive wherever some alternative is positive, and a mask of these keys."""
    point, seen = weights_row.clone(), space.visible
    if not space.nullity:
        return point, torch.zeros_like(seen)
    low = seen & (point < FLOOR)
    if not low.any():
        return point, seen
    programs = RowPrograms(weights_row[seen], space.kept[seen])
    points = [weights_row]
    while low.any():
        optimum = programs.minimise(-low[seen].double())
        if -optimum.value <= FLOOR * len(points):
            break
        vertex = torch.zeros_like(weights_row)
        vertex[seen] = optimum.point
        points.append(vertex)
        point = torch.stack(points).mean(0)
        fewer = seen & (point < FLOOR)
        if fewer.sum() == low.sum():
            break
        low = fewer
    # The solver's error changes the output of the mean; remove that change.
    point = (point - space.kept @ (space.kept.mT @ (point - weights_row))).clamp_min(0.0)
    return point, seen & ~low


def _face_directions(space: SimplexSpace, movable: Tensor) -> Tensor:
    if bool((movable == space.visible).all()):
        return space.free
    inside = space.kept[movable]
    left, sigma, _ = torch.linalg.svd(inside, full_matrices=True)
    # A wrong rank here would change the output by the singular value: only rounding counts as zero.
    rank = int((sigma > FACE_ROUNDING).sum())
    whole = space.free.new_zeros((space.visible.shape[0], inside.shape[0] - rank))
    whole[movable] = left[:, rank:]
    return whole


def _newton(point: Tensor, free: Tensor, movable: Tensor) -> tuple[Tensor, Tensor]:
    """Maximise Σ log x over the movable keys along the free directions; every iterate is feasible."""
    size = free.shape[1]
    rounding = torch.eye(size, dtype=point.dtype, device=point.device)
    basis = free[movable]
    for _ in range(MAX_STEPS if size else 0):
        inverse = 1 / point[movable]
        # QR instead of Cholesky of the Hessian: weights of 1e-9 would give a condition number of 1e18.
        rounding = torch.linalg.qr(basis * inverse[:, None], mode="r").R.mT
        gradient = basis.mT @ inverse
        step = torch.cholesky_solve(gradient[:, None], rounding)[:, 0]
        decrement = torch.sqrt((gradient @ step).clamp_min(0.0))
        if not decrement > 1e-6:
            break
        # The damped step of a self-concordant function stays inside its domain.
        length = 1.0 if decrement < 0.25 else float(1 / (1 + decrement))
        moved = point.clone()
        moved[movable] += length * (basis @ step)
        if moved[movable].min() <= 0:
            break
        point = moved
    return point, rounding
