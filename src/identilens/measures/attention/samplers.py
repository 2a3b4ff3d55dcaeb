"""Alternatives on the simplex: three ways to draw them, and a search for a far one."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.measures.attention.billiard import Generator, uniform_rows
from identilens.measures.attention.checks import check_numbers, checked_weights
from identilens.measures.attention.determined import Seen, shared_spaces
from identilens.measures.attention.row_programs import NUMBERS, optima_of
from identilens.measures.attention.simplex import largest_step, total_variation

Map = Float[Tensor, "query key"]
"""A number of each key in each row."""

Method = Literal["brunner", "bhardwaj", "uniform"]
COEFFICIENT = 10.0
"""Bhardwaj et al. draw the coefficients of the null space's basis uniformly on [−10, 10]."""
TURNED = 1 / 7
"""Share of the keys whose slope changes its sign in a new start of the search for a far alternative."""
TILT, LEAST_GROWTH = 1e-3, 1e-7
"""Differences between equal entries of a slope, which is -1, 0 or 1, and the growth of a distance that counts."""


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
    whole polytope of alternatives (see `billiard.uniform_rows`). With a ``share`` in [0, 1] (not for ``uniform``),
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
    found = []
    for _ in range(count):
        direction = torch.cat([directions(size, space) for size, space in groups])
        part: Tensor | float = 0.99 if share is None else share
        if share is None and method == "brunner":
            part = torch.rand(len(rows), dtype=rows.dtype, generator=generator).to(rows.device)
        move = (part * largest_step(rows, direction))[:, None] * direction
        found.append((rows + move).clamp_min(0.0))
    return torch.stack(found)


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
    found = rows.clone()
    for space, some, keys in shared_spaces(T.of_heads(), len(rows), visible):
        # Points of all starts are held together, of so many rows.
        for part in some.split(NUMBERS // len(keys) + 1, 1):
            place = part[..., None], keys
            found[place] = _farthest(space, rows[place], starts, generator)
    return found


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
