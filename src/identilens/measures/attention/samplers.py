"""Alternatives on the simplex: three ways to draw them, and one far away."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.linalg.programs import RowPrograms
from identilens.measures.attention.centre import Centre, analytic_centre
from identilens.measures.attention.checks import checked_row, checked_weights
from identilens.measures.attention.simplex import largest_step, total_variation

Method = Literal["brunner", "bhardwaj", "hit_and_run"]
Generator = torch.Generator | None
STEPS_AHEAD = 32
"""Hit-and-run steps whose directions are drawn at once."""
DIRECTION_BYTES = 64 * 2**20
"""Directions held for chains that run side by side."""
COEFFICIENT = 10.0
"""Bhardwaj et al. draw the coefficients of the null space's basis uniformly on [−10, 10]."""


def iterate_alternatives(
    weights: Float[Tensor, "query key"],
    projected_values: HeadValues,
    count: int,
    *,
    method: Method = "brunner",
    share: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    generator: Generator = None,
) -> Iterator[Float[Tensor, "query key"]]:
    """Yield ``count`` alternatives A' >= 0 with A'[T, 1] = A[T, 1], one at a time.

    ``brunner``: a' = a + λ ã, ã an isotropic random direction of LN([T, 1]), λ uniform on [0, λ_max]
    (Brunner et al. 2020, 3.3). ``bhardwaj``: ã with coefficients uniform on [−10, 10] in an orthonormal
    basis of LN([T, 1]) (Bhardwaj et al. 2021, 3.2.2), λ = 0.99 λ_max. ``hit_and_run``: uniform over the
    whole polytope of alternatives (see ``hit_and_run``). With a ``share`` in [0, 1], not for ``hit_and_run``,
    λ = share · λ_max instead; at exactly 1 one weight of the row is zero, which no softmax gives.

    Raises:
        InputError: Weights that are no distributions over T's rows or in half precision, or options out of range.
    """
    T = head_values(projected_values)
    rows = checked_weights(weights, T, visible)
    _check_number("count", count, 0)
    if method not in ("brunner", "bhardwaj", "hit_and_run"):
        raise InputError(f"expected method 'brunner', 'bhardwaj' or 'hit_and_run'; got {method!r}; choose one of them.")
    if share is not None and not 0 <= share <= 1:
        raise InputError(f"expected a share of λ_max in [0, 1]; got {share}; 1 goes to the edge of the simplex.")
    if share is not None and method == "hit_and_run":
        raise InputError("expected no share with method 'hit_and_run', which has no λ_max; leave `share` out.")
    spaces = T.simplex_spaces(rows.shape[0], visible)
    if method == "hit_and_run":
        return _walk(rows, spaces, count, generator)
    return _scaled_directions(rows, spaces, count, method, share, generator)


def sample_alternatives(
    weights: Float[Tensor, "query key"],
    projected_values: HeadValues,
    count: int,
    *,
    method: Method = "brunner",
    share: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    generator: Generator = None,
) -> Float[Tensor, "count query key"]:
    """Return the alternatives of ``iterate_alternatives`` in one tensor (count · n² · 8 bytes)."""
    drawn = iterate_alternatives(
        weights, projected_values, count, method=method, share=share, visible=visible, generator=generator
    )
    return torch.stack(list(drawn)) if count else weights.new_zeros((0, *weights.shape), dtype=torch.float64)


def hit_and_run(
    weights_row: Float[Tensor, " key"],
    space: SimplexSpace,
    count: int,
    *,
    steps: int | None = None,
    generator: Generator = None,
) -> Float[Tensor, "count key"]:
    """Return points spread uniformly over one row's alternatives.

    Independent hit-and-run chains start at the analytic centre; their directions are isotropic in the
    Dikin ellipsoid there, so thin polytopes are crossed as fast as round ones. The limit is uniform; after
    ``steps`` moves, 50 + 6 k by default, it is approached, not reached. Cost O(steps · count · n · k) for simplex
    nullity k.
    """
    centre = analytic_centre(weights_row, space)
    _check_number("count", count, 0)
    _check_number("steps", steps, 1)
    if not count:
        return centre.point.new_zeros((0, len(centre.point)))
    return _chains([centre] * count, [space] * count, steps, generator)


def _chains(
    centres: Sequence[Centre], spaces: Sequence[SimplexSpace], steps: int | None, generator: Generator
) -> Float[Tensor, "chain key"]:
    """Run hit-and-run chains side by side, each from its own centre; all have as many free directions."""
    points = torch.stack([centre.point for centre in centres])
    size = centres[0].free.shape[1]
    if not size:
        return points
    # x moves by free L⁻ᵀ g: the rows of a chain's directions are those of free L⁻ᵀ.
    directions = {
        name: torch.linalg.solve_triangular(centre.rounding.mT, centre.free, upper=True, left=False).mT
        for name, centre in {id(centre): centre for centre in centres}.items()
    }
    several = len(directions) > 1
    stacked = torch.stack([directions[id(centre)] for centre in centres] if several else [*directions.values()])
    remaining = 50 + 6 * size if steps is None else steps
    while remaining > 0:
        # Directions do not depend on where the chains stand: many steps' are made by one matrix product.
        ahead = min(remaining, STEPS_AHEAD)
        draw = torch.randn(len(points), ahead, size, dtype=points.dtype, generator=generator).to(points.device)
        position = torch.rand(len(points), ahead, dtype=points.dtype, generator=generator).to(points.device)
        moves = draw @ stacked
        for step in range(ahead):
            move = moves[:, step]
            forward, backward = largest_step(points, move), largest_step(points, -move)
            length = position[:, step] * (forward + backward) - backward
            points = (points + length[:, None] * move).clamp_min(0.0)
        remaining -= ahead
    for row, (centre, space) in enumerate(zip(centres, spaces, strict=True)):
        drift = (points[row] - centre.point) @ space.kept
        points[row] = (points[row] - space.kept @ drift).clamp_min(0.0)
    return points


def far_alternative(
    weights_row: Float[Tensor, " key"], space: SimplexSpace, *, starts: int = 8, generator: Generator = None
) -> Float[Tensor, " key"]:
    """Return the alternative of largest total variation distance found.

    Maximising a convex function over a polytope is hard in general: this is a lower bound of the largest
    distance. From each start the distance is linearised and a linear program solved, which never
    decreases it, until it stays the same; the starts are random directions and the one that empties the
    largest weight.

    Raises:
        InputError: Weights that are no distribution over the space's keys or in half precision, or no start.
    """
    whole = checked_row(weights_row, space)
    _check_number("starts", starts, 1)
    if not space.nullity:
        return whole.clone()
    seen, row = space.visible, whole[space.visible]
    programs = RowPrograms(row, space.kept[seen])
    top = torch.zeros_like(row)
    top[row.argmax()] = -1.0
    draws = torch.randn(starts, space.nullity, dtype=row.dtype, generator=generator).to(row.device)
    best, farthest = row, 0.0
    for slope in [top, *torch.sign(draws @ space.free[seen].mT)]:
        reached = -1.0
        while True:
            vertex = programs.minimise(-slope).point
            distance = float(total_variation(row, vertex))
            if distance <= reached + 1e-9:
                break
            if distance > farthest:
                best, farthest = vertex, distance
            reached, slope = distance, torch.sign(vertex - row)
    return torch.zeros_like(whole).masked_scatter(seen, best)


def far_alternatives(
    weights: Float[Tensor, "query key"],
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    starts: int = 8,
    generator: Generator = None,
) -> Float[Tensor, "query key"]:
    """Return ``far_alternative`` of every row of a head."""
    T = head_values(projected_values)
    rows = checked_weights(weights, T, visible)
    found = rows.clone()
    for index, space in enumerate(T.simplex_spaces(len(rows), visible)):
        found[index] = far_alternative(rows[index], space, starts=starts, generator=generator)
    return found


def _check_number(name: str, given: int | None, least: int) -> None:
    if given is not None and given < least:
        raise InputError(f"expected {name} of at least {least}; got {given}.")


def _scaled_directions(
    rows: Tensor, spaces: list[SimplexSpace], count: int, method: Method, share: float | None, generator: Generator
) -> Iterator[Tensor]:
    def directions(size: int, space: SimplexSpace) -> Tensor:
        draw = torch.rand if method == "bhardwaj" else torch.randn
        drawn = draw(size, space.nullity, dtype=rows.dtype, generator=generator).to(rows.device)
        return ((2 * drawn - 1).mul(COEFFICIENT) if method == "bhardwaj" else drawn) @ space.free.mT

    shared = all(space is spaces[0] for space in spaces)
    groups = [(len(rows), spaces[0])] if shared and spaces else [(1, space) for space in spaces]
    for _ in range(count):
        if not groups:
            yield rows
            continue
        direction = torch.cat([directions(size, space) for size, space in groups])
        reach = largest_step(rows, direction)
        part: Tensor | float = 0.99 if share is None else share
        if share is None and method == "brunner":
            part = torch.rand(reach.shape, dtype=reach.dtype, generator=generator).to(reach.device)
        yield (rows + (part * reach)[:, None] * direction).clamp_min(0.0)


def _walk(rows: Tensor, spaces: list[SimplexSpace], count: int, generator: Generator) -> Iterator[Tensor]:
    """Yield alternatives of all rows; rows with as many free directions run side by side."""
    centres = [analytic_centre(row, space) for row, space in zip(rows, spaces, strict=True)]
    groups: dict[int, list[int]] = {}
    for index, centre in enumerate(centres):
        groups.setdefault(centre.free.shape[1], []).append(index)
    for _ in range(count):
        drawn = torch.empty_like(rows)
        for size, members in groups.items():
            together = max(1, DIRECTION_BYTES // (8 * rows.shape[1] * max(1, size)))
            for start in range(0, len(members), together):
                some = members[start : start + together]
                drawn[some] = _chains([centres[row] for row in some], [spaces[row] for row in some], None, generator)
        yield drawn
