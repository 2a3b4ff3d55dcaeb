"""Alternatives on the simplex: three ways to draw them, and a search for a far one."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import InputError, NumericalError
from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.linalg.decompositions import svd
from identilens.linalg.programs import by_simplex
from identilens.measures.attention.checks import check_numbers, checked_weights
from identilens.measures.attention.determined import Seen, shared_spaces
from identilens.measures.attention.row_programs import NUMBERS, optima_of, stacked
from identilens.measures.attention.simplex import largest_step, total_variation

Generator = torch.Generator | None
Map = Float[Tensor, "query key"]
"""A number of each key in each row."""

Method = Literal["brunner", "bhardwaj", "uniform"]
COEFFICIENT = 10.0
"""Bhardwaj et al. draw the coefficients of the null space's basis uniformly on [−10, 10]."""
TURNED = 1 / 7
"""Share of the keys whose slope changes its sign in a new start of the search for a far alternative."""
TILT, LEAST_GROWTH = 1e-3, 1e-7
"""Differences between equal entries of a slope, which is -1, 0 or 1, and the growth of a distance that counts."""
FLOOR = 1e-9
"""A weight that is below this in every alternative cannot change."""

MAX_STEPS = 200
FACE_ROUNDING = 1e-10
"""Singular values of the orthonormal B, restricted to the movable keys, up to this count as zero."""
LEG = 2.0
"""Time of a leg: the length of the way in one direction, in radii of the Dikin ellipsoid."""
LEGS = 32
"""Legs of a chain, twice as many as any polytope that was tried needs: see docs/alternatives.md."""
BYTES = 64 * 2**20
"""Largest size of the matrices of chains that run at the same time."""
_REFLECTIONS = 10_000
"""Largest number of reflections of a leg for each free direction; about one is usual."""


def sample_alternatives(
    weights: Map,
    projected_values: HeadValues,
    count: int,
    *,
    method: Method = "brunner",
    share: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    generator: Generator = None,
) -> Float[Tensor, "count query key"]:
    """Return ``count`` alternatives A' >= 0 with A'[T, 1] = A[T, 1].

    ``brunner``: a' = a + λ ã, ã an isotropic random direction of LN([T, 1]), λ uniform on [0, λ_max]
    (Brunner et al. 2020, 3.3). ``bhardwaj``: ã with coefficients uniform on [−10, 10] in an orthonormal
    basis of LN([T, 1]) (Bhardwaj et al. 2021, 3.2.2), λ = 0.99 λ_max. ``uniform``: drawn uniformly from the
    whole polytope of alternatives (see `uniform_rows`). With a ``share`` in [0, 1] (not for ``uniform``),
    λ = share · λ_max instead; at exactly 1 one weight of the row is zero, which no softmax gives.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import sample_alternatives
        >>> T, weights = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([[0.1, 0.1, 0.8], [0.5, 0.5, 0.0]])
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = sample_alternatives(weights, T, 5, generator=generator)
        >>> drawn.shape, torch.allclose(drawn @ T.double(), (weights @ T).double(), atol=1e-6)
        (torch.Size([5, 2, 3]), True)

    Raises:
        InputError: Weights that are not distributions over T's rows or in half precision, or options out of range.
    """
    T = head_values(projected_values)
    rows = checked_weights(weights, T, visible)
    check_numbers(0, count=count)
    if method not in ("brunner", "bhardwaj", "uniform"):
        raise InputError(
            f"expected method 'brunner', 'bhardwaj' or 'uniform'; got {method!r}; choose one of them."
        )
    if share is not None and not (0 <= share <= 1 and method != "uniform"):
        raise InputError(
            f"expected a share of λ_max in [0, 1], and none with method 'uniform', which has no λ_max; got {share} "
            f"with {method!r}; 1 goes to the edge of the simplex."
        )
    if not len(rows) or not count:
        return rows.repeat(count, 1, 1)
    spaces = T.simplex_spaces(len(rows), visible)
    if method == "uniform":
        return uniform_rows(rows, spaces, count, generator)

    def directions(size: int, space: SimplexSpace) -> Tensor:
        draw = torch.rand if method == "bhardwaj" else torch.randn
        drawn = draw(size, space.nullity, dtype=rows.dtype, generator=generator).to(rows.device)
        return ((2 * drawn - 1).mul(COEFFICIENT) if method == "bhardwaj" else drawn) @ space.free.mT

    shared = all(space is spaces[0] for space in spaces)
    groups = [(len(rows), spaces[0])] if shared else [(1, space) for space in spaces]
    moved = []
    for _ in range(count):
        direction = torch.cat([directions(size, space) for size, space in groups])
        part: Tensor | float = 0.99 if share is None else share
        if share is None and method == "brunner":
            part = torch.rand(len(rows), dtype=rows.dtype, generator=generator).to(rows.device)
        move = (part * largest_step(rows, direction))[:, None] * direction
        moved.append((rows + move).clamp_min(0.0))
    return torch.stack(moved)


def far_alternatives(
    weights: Map,
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    starts: int = 8,
    generator: Generator = None,
) -> Map:
    """Return for each row of a head the alternative with the largest total variation distance found.

    Maximising a convex function over a polytope is hard in general. The distance found is a lower bound of the largest
    distance; 1 − `certain_mass` is an upper bound. From each start, the distance is linearised and a linear program is
    solved, again and again until the distance no longer grows (it never decreases). The first starts move weight away
    from the 1, 2, 4, … largest weights. Each of ``starts`` further starts is at the best point so far, with the sign
    of the slope changed on a random seventh of the keys. Programs of all rows are solved together.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import certain_mass, far_alternatives, total_variation
        >>> T, weights = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([[0.1, 0.1, 0.8], [0.5, 0.5, 0.0]])
        >>> total_variation(weights, far_alternatives(weights, T)).round(decimals=6)
        tensor([0.8000, 1.0000], dtype=torch.float64)
        >>> 1 - certain_mass(weights, T)
        tensor([1., 1.], dtype=torch.float64)

    Raises:
        InputError: Weights that are not distributions over T's rows or in half precision, or no start.
    """
    T = head_values(projected_values)
    rows = checked_weights(weights, T, visible)
    check_numbers(1, starts=starts)
    far = rows.clone()
    for space, some, keys in shared_spaces(T.of_heads(), len(rows), visible):
        # Points of all starts are held together, of so many rows.
        for part in some.split(NUMBERS // len(keys) + 1, 1):
            cells = part[..., None], keys
            far[cells] = _farthest(space, rows[cells], starts, generator)
    return far


def _farthest(
    space: SimplexSpace, rows: Seen, starts: int, generator: Generator
) -> Float[Tensor, "head row seen"]:
    """Return a far alternative of each row: see `far_alternatives`."""

    def farther(slopes: Float[Tensor, "head row start seen"], best: Seen) -> Seen:
        """Return the farthest point that is reached from some slopes, or the best so far."""
        reached = -torch.ones_like(slopes[..., 0])
        while slopes.numel():
            # A slope has equal entries: small differences lead to a corner of the polytope.
            tilt = TILT * torch.rand(slopes.shape, dtype=slopes.dtype, generator=generator)
            exact = torch.zeros_like(rows[..., 0])
            points = optima_of(space, rows, tilt.to(slopes) - slopes, exact).points
            points = torch.cat([points, best[:, :, None]], 2)
            distances = total_variation(rows[:, :, None], points)
            best = points.take_along_dim(distances.argmax(2)[..., None, None], 2)[:, :, 0]
            # As many starts of each row go on as those of one row whose distance still grows.
            grown = distances[..., :-1] > reached + LEAST_GROWTH
            first = grown.byte().argsort(dim=2, descending=True, stable=True)
            first = first[..., : int(grown.sum(2).max())]
            reached = distances.gather(2, first)
            slopes = (points.take_along_dim(first[..., None], 2) - rows[:, :, None]).sign()
        return best

    order = rows.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    sizes = 2 ** torch.arange(max(rows.shape[-1] - 1, 1).bit_length(), device=rows.device)
    best = farther(-(order[:, :, None] < sizes[:, None]).double(), rows)
    away = (best - rows).sign()[:, :, None].expand(-1, -1, starts, -1)
    drawn = torch.rand(away.shape, dtype=rows.dtype, generator=generator).to(rows.device)
    return farther(away * torch.where(drawn < TURNED, -1.0, 1.0), best)


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
        >>> from identilens.measures.attention.samplers import analytic_centre
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
    point, mask = weights_row.clone(), space.visible
    if not space.nullity:
        return point, torch.zeros_like(mask)
    low = mask & (point < FLOOR)
    if not low.any():
        return point, mask
    points = [weights_row]
    while low.any():
        vertex = torch.zeros_like(weights_row)
        vertex[mask] = by_simplex(-low[mask].double(), weights_row[mask], space.kept[mask])[0]
        if vertex[low].sum() <= FLOOR * len(points):
            break
        points.append(vertex)
        point = torch.stack(points).mean(0)
        fewer = mask & (point < FLOOR)
        if fewer.sum() == low.sum():
            break
        low = fewer
    # The solver's error changes the output of the mean; remove that change.
    point = (point - space.kept @ (space.kept.mT @ (point - weights_row))).clamp_min(0.0)
    return point, mask & ~low


def _face_directions(space: SimplexSpace, movable: Tensor) -> Tensor:
    if (movable == space.visible).all():
        return space.free
    inside = space.kept[movable]
    left, sigma, _ = svd(inside, full_matrices=True)
    # A wrong rank here would change the output by the singular value: only rounding counts as zero.
    rank = int((sigma > FACE_ROUNDING).sum())
    basis = space.free.new_zeros((space.visible.shape[0], inside.shape[0] - rank))
    basis[movable] = left[:, rank:]
    return basis


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
    sizes = [8 * len(centre.free) * sum(centre.free.shape) for centre in centres]
    solve, chains = torch.linalg.solve_triangular, []
    together = max(1, BYTES // max(sizes))
    for first in range(0, len(centres), together):
        some = centres[first : first + together]
        starts = torch.stack([centre.point for centre in some])[:, None]
        # x moves by free L⁻ᵀ g: the rows of free L⁻ᵀ are a chain's directions, its columns the normals of the walls.
        moves = [solve(centre.rounding.mT, centre.free, upper=True, left=False) for centre in some]
        # Rows with fewer free directions get zeros for the others.
        size = max(move.shape[1] for move in moves)
        moves = torch.stack([pad(move, (0, size - move.shape[1])) for move in moves]).mT
        normals, points = moves.mT @ moves, starts.repeat(1, count, 1)
        for _ in range(LEGS if size else 0):
            shape = (*points.shape[:2], size)
            drawn = torch.randn(shape, dtype=points.dtype, generator=generator).to(points.device)
            points = _leg(points, drawn @ moves, normals, _REFLECTIONS * size)
        kept = stacked(spaces[first : first + together]).kept
        drift = (points - starts) @ kept
        chains.append((points - drift @ kept.mT).clamp_min(0.0))
    return torch.cat(chains).transpose(0, 1)


def _leg(
    points: Float[Tensor, "centre chain key"],
    velocity: Float[Tensor, "centre chain key"],
    normals: Float[Tensor, "centre key key"],
    most: int,
) -> Float[Tensor, "centre chain key"]:
    """Run every chain for the time of a leg; a wall with normal w turns v into v − 2 (v·w) w / |w|²."""
    left = torch.full_like(velocity[..., 0], LEG)
    centre = torch.arange(len(velocity), device=velocity.device)[:, None].expand(velocity.shape[:2])
    sizes = normals.diagonal(dim1=1, dim2=2)
    for _ in range(most):
        reach, wall = torch.where(velocity < 0, -points / velocity, torch.inf).min(-1)
        hit = reach < left
        points = (points + torch.where(hit, reach, left)[..., None] * velocity).clamp_min(0.0)
        if not hit.any():
            return points
        left = torch.where(hit, left - reach, 0.0)
        towards = velocity.gather(-1, wall[..., None])[..., 0]
        turn = torch.where(hit, 2 * towards / sizes[centre, wall], 0.0)
        velocity = velocity - turn[..., None] * normals[centre, wall]
    raise NumericalError(
        f"expected a leg of a billiard walk to end within {most} reflections; the alternatives may be too thin: "
        "try a larger tolerance, or leave this row out."
    )
