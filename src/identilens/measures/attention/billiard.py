"""Billiard walks: points drawn uniformly from the alternatives of rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import NumericalError
from identilens.linalg import SimplexSpace
from identilens.linalg.decompositions import svd
from identilens.linalg.programs import by_simplex
from identilens.measures.attention.row_programs import stacked

FLOOR = 1e-9
"""A weight that is below this in every alternative cannot change."""

MAX_STEPS = 200
FACE_ROUNDING = 1e-10
"""Singular values of the orthonormal B, restricted to the movable keys, up to this count as zero."""


class Centre(NamedTuple):
    """The analytic centre of a row's alternatives.

    Attributes:
        point: The centre: maximiser of Σ log x_j over the keys whose weight is above ``FLOOR`` in some alternative.
        free: Orthonormal basis of the alternatives' directions; zero rows on the keys that cannot move.
        rounding: L with L Lᵀ = the Hessian of −Σ log x at the centre, in the coordinates of ``free``.
    """

    point: Float[Tensor, " key"]
    free: Float[Tensor, "key k"]
    rounding: Float[Tensor, "k k"]


def analytic_centre(row: Float[Tensor, " key"], space: SimplexSpace) -> Centre:
    """Return the analytic centre of {x >= 0, x[T, 1] = a[T, 1]} of a row a that was checked.

    Zero weights (an underflowed softmax, a one-hot row) mean that a is on the boundary. Linear programs then find the
    keys that some alternative can use, and the centre is computed on that face. Damped Newton steps of cost O(n k²)
    for simplex nullity k.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import simplex_space
        >>> from identilens.measures.attention.billiard import analytic_centre
        >>> T, row = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([0.1, 0.1, 0.8]).double()
        >>> analytic_centre(row, simplex_space(T)).point
        tensor([0.3333, 0.3333, 0.3333], dtype=torch.float64)
    """
    start, movable = _relative_interior(row, space)
    free = _face_directions(space, movable)
    point, rounding = _newton(start, free, movable)
    return Centre(point, free, rounding)


def _relative_interior(weights_row: Tensor, space: SimplexSpace) -> tuple[Tensor, Tensor]:
    """Return a feasible point that is positive wherever some alternative is positive, and a mask of these keys."""
    point, seen = weights_row.clone(), space.visible
    if not space.nullity:
        return point, torch.zeros_like(seen)
    low = seen & (point < FLOOR)
    if not low.any():
        return point, seen
    points = [weights_row]
    while low.any():
        vertex = torch.zeros_like(weights_row)
        vertex[seen] = by_simplex(-low[seen].double(), weights_row[seen], space.kept[seen])[0]
        if vertex[low].sum() <= FLOOR * len(points):
            break
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
    left, sigma, _ = svd(inside, full_matrices=True)
    # A wrong rank here would change the output by the singular value: only rounding counts as zero.
    rank = int((sigma > FACE_ROUNDING).sum())
    whole = space.free.new_zeros((space.visible.shape[0], inside.shape[0] - rank))
    whole[movable] = left[:, rank:]
    return whole


def _newton(point: Tensor, free: Tensor, movable: Tensor) -> tuple[Tensor, Tensor]:
    """Maximise Σ log x over the movable keys along the free directions; every iterate is feasible."""
    size = free.shape[1]
    rounding = torch.eye(size).to(point)
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


Generator = torch.Generator | None
LEG = 2.0
"""Time of a leg: the length of the way in one direction, in radii of the Dikin ellipsoid."""
LEGS = 32
"""Legs of a chain, twice as many as any polytope that was tried needs: see docs/alternatives.md."""
BYTES = 64 * 2**20
"""Largest size of the matrices of chains that run at the same time."""
_REFLECTIONS = 10_000
"""Largest number of reflections of a leg for each free direction; about one is usual."""


def uniform_rows(
    rows: Float[Tensor, "query key"],
    spaces: Sequence[SimplexSpace],
    count: int,
    generator: Generator = None,
) -> Float[Tensor, "count query key"]:
    """Return points drawn uniformly from the alternatives of the checked rows of a map, ``count`` of each.

    Independent billiard walks start at the analytic centres. Each leg moves in a straight line for a fixed time. Its
    velocity is normally distributed in the metric of the Dikin ellipsoid at the centre. It is reflected where a weight
    reaches zero. These moves do not change the uniform distribution, and cross thin polytopes as fast as round ones.
    Cost O(n) per reflection, about k reflections per leg for simplex nullity k.
    """
    centres = [analytic_centre(row, space) for row, space in zip(rows, spaces, strict=True)]
    sizes = [8 * len(one.free) * sum(one.free.shape) for one in centres]
    drawn = []
    for part in torch.arange(len(centres)).split(max(1, BYTES // max(sizes))):
        some = slice(int(part[0]), int(part[-1]) + 1)
        drawn.append(_chains(centres[some], spaces[some], count, generator))
    return torch.cat(drawn).transpose(0, 1)


def _chains(
    centres: Sequence[Centre], spaces: Sequence[SimplexSpace], count: int, generator: Generator
) -> Float[Tensor, "centre chain key"]:
    """Return where chains end that start at some centres, as many at each."""
    starts = torch.stack([centre.point for centre in centres])[:, None]
    # x moves by free L⁻ᵀ g: the rows of free L⁻ᵀ are a chain's directions, its columns the normals of the walls.
    solve = torch.linalg.solve_triangular
    directions = [
        solve(centre.rounding.mT, centre.free, upper=True, left=False) for centre in centres
    ]
    # Rows with fewer free directions get zeros for the others.
    size = max(one.shape[1] for one in directions)
    moves = torch.stack([pad(one, (0, size - one.shape[1])) for one in directions]).mT
    normals, points = moves.mT @ moves, starts.repeat(1, count, 1)
    for _ in range(LEGS if size else 0):
        shape = (*points.shape[:2], size)
        drawn = torch.randn(shape, dtype=points.dtype, generator=generator).to(points.device)
        points = _leg(points, drawn @ moves, normals, _REFLECTIONS * size)
    kept = stacked(spaces).kept
    drift = (points - starts) @ kept
    return (points - drift @ kept.mT).clamp_min(0.0)


def _leg(
    points: Float[Tensor, "centre chain key"],
    velocity: Float[Tensor, "centre chain key"],
    normals: Float[Tensor, "centre key key"],
    most: int,
) -> Float[Tensor, "centre chain key"]:
    """Run every chain for the time of a leg; a wall with normal w turns v into v − 2 (v·w) w / |w|²."""
    left = torch.full_like(velocity[..., 0], LEG)
    place = torch.arange(len(velocity), device=velocity.device)[:, None].expand(velocity.shape[:2])
    sizes = normals.diagonal(dim1=1, dim2=2)
    for _ in range(most):
        reach, wall = torch.where(velocity < 0, -points / velocity, torch.inf).min(-1)
        hit = reach < left
        points = (points + torch.where(hit, reach, left)[..., None] * velocity).clamp_min(0.0)
        if not hit.any():
            return points
        left = torch.where(hit, left - reach, 0.0)
        towards = velocity.gather(-1, wall[..., None])[..., 0]
        turn = torch.where(hit, 2 * towards / sizes[place, wall], 0.0)
        velocity = velocity - turn[..., None] * normals[place, wall]
    raise NumericalError(
        f"expected a leg of a billiard walk to end within {most} reflections; the alternatives may be too thin: "
        "try a larger tolerance, or leave this row out."
    )
