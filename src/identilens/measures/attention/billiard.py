"""Billiard walks: points drawn uniformly from the alternatives of rows. Pilot chains set the length of the chains."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import NumericalError
from identilens.linalg import SimplexSpace
from identilens.linalg.decompositions import svd
from identilens.linalg.programs import by_simplex

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
    start, movable = _relative_interior(weights_row, space)
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
FIRST = 8
"""Number of legs of the first pilot chains."""
LONGEST = 64
"""The largest length of chains, in multiples of twice the length of the first pilots."""
PAIRS, PLACES = 64, 2048
"""The least number of pairs of pilot chains, and of pairs times free directions."""
BYTES = 64 * 2**20
"""Largest size of the matrices of chains that run at the same time."""
_REFLECTIONS = 10_000
"""Largest number of reflections of a leg for each free direction; about one is usual."""


@dataclass(frozen=True)
class Mixing:
    """The length of chains, and measures of pilot chains after half their legs (t) and after all legs (2 t).

    Distances are measured key by key, as shares of the weight of the analytic centre, where the chains start.

    Attributes:
        legs: Number of legs of a chain, 2 t.
        memory: Correlation of the positions of a chain after t and after 2 t legs.
        memory_error: Standard error of ``memory``.
        growth: Relative growth of the mean squared distance from the centre between t and 2 t legs.
        growth_error: Standard error of ``growth``.
    """

    legs: int
    memory: float
    memory_error: float
    growth: float
    growth_error: float

    @property
    def settled(self) -> bool:
        """Whether memory and growth are at most twice their standard errors: t legs are enough to forget the start."""
        return self.memory <= 2 * self.memory_error and self.growth <= 2 * self.growth_error


class Walks:
    """Points drawn uniformly from the alternatives of the checked rows of a map.

    Independent billiard walks start at the analytic centres. Each leg moves in a straight line for a fixed time. Its
    velocity is normally distributed in the metric of the Dikin ellipsoid at the centre. It is reflected where a weight
    reaches zero. These moves do not change the uniform distribution, and cross thin polytopes as fast as round ones.
    Cost O(n) per reflection, about k reflections per leg for simplex nullity k.

    ``mixing`` has the length of the chains: pairs of pilot chains start at the centres, 64 pairs in all (of up to 64
    rows, evenly spaced), or 2048 / k if that is more. Their positions after t = 8 legs and after 2 t legs are compared.
    t is doubled until two measures are at most twice their standard errors: the correlation of the positions, and the
    growth of their mean squared distance from the centre. Chains then have 2 t legs: an error that remains after t legs
    is about squared after 2 t. At 1024 legs the search stops without this result. The check is of all rows together: a
    row that mixes much worse than the others may not be noticed.
    """

    def __init__(
        self,
        rows: Float[Tensor, "query key"],
        spaces: Sequence[SimplexSpace],
        generator: Generator = None,
    ) -> None:
        self.spaces, self.generator = spaces, generator
        self.centres = [
            analytic_centre(row, space) for row, space in zip(rows, spaces, strict=True)
        ]
        self.mixing = _mixing(self.centres, spaces, generator)

    def draw(self, count: int) -> Float[Tensor, "count query key"]:
        """Return ``count`` alternatives of each row."""
        together = _side_by_side(self.centres)
        drawn = []
        for start in range(0, len(self.centres), together):
            part = slice(start, start + together)
            chains = _Chains(self.centres[part], self.spaces[part], count, self.generator)
            chains.walk(self.mixing.legs)
            drawn.append(chains.points)
        return torch.cat(drawn).transpose(0, 1)


def _side_by_side(centres: Sequence[Centre]) -> int:
    """Return the number of centres whose chains run at the same time."""
    sizes = (8 * keys * (keys + size) for keys, size in (one.free.shape for one in centres))
    return max(1, BYTES // max(sizes, default=1))


def _mixing(
    centres: Sequence[Centre], spaces: Sequence[SimplexSpace], generator: Generator
) -> Mixing:
    size = max((centre.free.shape[1] for centre in centres), default=0)
    if not size:
        return Mixing(0, 0.0, 0.0, 0.0, 0.0)
    rows = min(len(centres), PAIRS, _side_by_side(centres))
    chosen = [(index + 1) * len(centres) // rows - 1 for index in range(rows)]
    copies = 2 * -(-max(PAIRS, PLACES // size) // rows)
    pilots = _Chains(
        [centres[row] for row in chosen], [spaces[row] for row in chosen], copies, generator
    )
    legs = FIRST
    pilots.walk(legs)
    while True:
        before = pilots.shares()
        pilots.walk(legs)
        legs *= 2
        after = pilots.shares()
        # With differences of a pair the mean position is not needed: Cov(x, y) = E (x − x')(y − y') / 2.
        apart, later = (places[:, 0] - places[:, 1] for places in (before, after))
        memory = _ratio((apart * later).sum(-1), later.square().sum(-1))
        sizes, grown = (places.square().sum((-2, -1)) for places in (before, after))
        found = Mixing(legs, *memory, *_ratio(grown - sizes, grown))
        if found.settled or legs >= 2 * FIRST * LONGEST:
            return found


def _ratio(part: Tensor, whole: Tensor) -> tuple[float, float]:
    """Return mean(part) / mean(whole) and its standard error."""
    mean = float(whole.mean()) or 1.0
    ratio = float(part.mean()) / mean
    return ratio, float((part - ratio * whole).std()) / mean / len(part) ** 0.5


class _Chains:
    """The same number of chains from each of some centres."""

    def __init__(
        self,
        centres: Sequence[Centre],
        spaces: Sequence[SimplexSpace],
        copies: int,
        generator: Generator,
    ) -> None:
        self.spaces, self.generator = spaces, generator
        self.starts = torch.stack([centre.point for centre in centres])[:, None]
        self.points = self.starts.repeat(1, copies, 1)
        # x moves by free L⁻ᵀ g: the rows of free L⁻ᵀ are a chain's directions, its columns the normals of the walls.
        solve = torch.linalg.solve_triangular
        directions = [
            solve(centre.rounding.mT, centre.free, upper=True, left=False) for centre in centres
        ]
        # Rows with fewer free directions get zeros for the others.
        most = max(one.shape[1] for one in directions)
        self.directions = torch.stack([pad(one, (0, most - one.shape[1])) for one in directions]).mT
        self.normals = self.directions.mT @ self.directions

    def walk(self, legs: int) -> None:
        """Run this many legs."""
        size = self.directions.shape[1]
        for _ in range(legs if size else 0):
            shape = (*self.points.shape[:2], size)
            draw = torch.randn(shape, dtype=self.points.dtype, generator=self.generator).to(
                self.points.device
            )
            self._leg(draw @ self.directions, _REFLECTIONS * size)
        for points, start, space in zip(self.points, self.starts, self.spaces, strict=True):
            drift = (points - start) @ space.kept
            points.copy_((points - drift @ space.kept.mT).clamp_min(0.0))

    def shares(self) -> Float[Tensor, "pair 2 key"]:
        """Return the positions of the pairs as shares of the centres' weights; 0 on keys that do not move."""
        moved = torch.where(self.starts > 0, self.points / self.starts - 1, 0.0)
        return moved.reshape(-1, 2, moved.shape[-1])

    def _leg(self, velocity: Tensor, most: int) -> None:
        """Run every chain for the time of a leg; a wall with normal w turns v into v − 2 (v·w) w / |w|²."""
        left = torch.full_like(velocity[..., 0], LEG)
        place = torch.arange(len(velocity), device=velocity.device)[:, None].expand(
            velocity.shape[:2]
        )
        sizes = self.normals.diagonal(dim1=1, dim2=2)
        for _ in range(most):
            reach, wall = torch.where(velocity < 0, -self.points / velocity, torch.inf).min(-1)
            hit = reach < left
            self.points = (
                self.points + torch.where(hit, reach, left)[..., None] * velocity
            ).clamp_min(0.0)
            if not hit.any():
                return
            left = torch.where(hit, left - reach, 0.0)
            towards = velocity.gather(-1, wall[..., None])[..., 0]
            turn = torch.where(hit, 2 * towards / sizes[place, wall], 0.0)
            velocity = velocity - turn[..., None] * self.normals[place, wall]
        raise NumericalError(
            f"expected a leg of a billiard walk to end within {most} reflections; the alternatives may be too thin: "
            "try a larger tolerance, or leave this row out."
        )
