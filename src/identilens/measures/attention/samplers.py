"""Alternatives on the simplex: three ways to draw them, and a search for a far one."""

from collections.abc import Iterator
from itertools import repeat
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.linalg.programs import by_simplex
from identilens.measures.attention.billiard import Generator, Walks
from identilens.measures.attention.checks import check_numbers, checked_row, checked_weights
from identilens.measures.attention.row_programs import filled
from identilens.measures.attention.simplex import largest_step, total_variation

Map = Float[Tensor, "query key"]
"""A number of each key in each row."""

Method = Literal["brunner", "bhardwaj", "uniform"]
COEFFICIENT = 10.0
"""Bhardwaj et al. draw the coefficients of the null space's basis uniformly on [−10, 10]."""
TURNED = 1 / 7
"""Share of the keys whose slope changes its sign in a new start of the search for a far alternative."""


def iterate_alternatives(
    weights: Map,
    projected_values: HeadValues,
    count: int,
    *,
    method: Method = "brunner",
    share: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    generator: Generator = None,
) -> Iterator[Map]:
    """Yield ``count`` alternatives A' >= 0 with A'[T, 1] = A[T, 1], one at a time.

    ``brunner``: a' = a + λ ã, ã an isotropic random direction of LN([T, 1]), λ uniform on [0, λ_max]
    (Brunner et al. 2020, 3.3). ``bhardwaj``: ã with coefficients uniform on [−10, 10] in an orthonormal
    basis of LN([T, 1]) (Bhardwaj et al. 2021, 3.2.2), λ = 0.99 λ_max. ``uniform``: drawn uniformly from the
    whole polytope of alternatives (see `uniform_alternatives`). With a ``share`` in [0, 1] (not for ``uniform``),
    λ = share · λ_max instead; at exactly 1 one weight of the row is zero, which no softmax gives.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import iterate_alternatives
        >>> T, weights = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([[0.1, 0.1, 0.8], [0.5, 0.5, 0.0]])
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = iterate_alternatives(weights, T, 2, generator=generator)
        >>> [torch.allclose(one @ T.double(), (weights @ T).double(), atol=1e-6) for one in drawn]
        [True, True]

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
    if share is not None and not 0 <= share <= 1:
        raise InputError(
            f"expected a share of λ_max in [0, 1]; got {share}; 1 goes to the edge of the simplex."
        )
    if share is not None and method == "uniform":
        raise InputError(
            "expected no share with method 'uniform', which has no λ_max; leave `share` out."
        )
    if not len(rows) or not count:
        return repeat(rows, count)
    spaces = T.simplex_spaces(len(rows), visible)
    if method == "uniform":
        return Walks(rows, spaces, generator).draw(count)
    return _scaled_directions(rows, spaces, count, method, share, generator)


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
    """Return the alternatives of ``iterate_alternatives`` in one tensor (count · n² · 8 bytes).

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import sample_alternatives
        >>> T, weights = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([[0.1, 0.1, 0.8], [0.5, 0.5, 0.0]])
        >>> generator = torch.Generator().manual_seed(0)
        >>> sample_alternatives(weights, T, 5, method="uniform", generator=generator).shape
        torch.Size([5, 2, 3])
    """
    drawn = iterate_alternatives(
        weights,
        projected_values,
        count,
        method=method,
        share=share,
        visible=visible,
        generator=generator,
    )
    return (
        torch.stack(list(drawn))
        if count
        else weights.new_zeros((0, *weights.shape), dtype=torch.float64)
    )


def far_alternative(
    weights_row: Float[Tensor, " key"],
    space: SimplexSpace,
    *,
    starts: int = 8,
    generator: Generator = None,
) -> Float[Tensor, " key"]:
    """Return the alternative with the largest total variation distance found.

    Maximising a convex function over a polytope is hard in general. The distance found is a lower bound of the largest
    distance; 1 − `certain_mass` is an upper bound. From each start, the distance is linearised and a linear program is
    solved, again and again until the distance no longer grows (it never decreases). The first starts move weight away
    from the 1, 2, 4, … largest weights. Each of ``starts`` further starts is at the best vertex so far, with the sign
    of the slope changed on a random seventh of the keys.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import far_alternative, simplex_space, total_variation
        >>> T, row = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([0.1, 0.1, 0.8])
        >>> far = far_alternative(row, simplex_space(T))
        >>> far, round(float(total_variation(row, far)), 4)
        (tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64), 0.8)

    Raises:
        InputError: Weights that are not a distribution over the space's keys or in half precision, or no start.
    """
    whole = checked_row(weights_row, space)
    check_numbers(1, starts=starts)
    if not space.nullity:
        return whole.clone()
    row = whole[space.visible].cpu()
    kept = space.seen.cpu()
    largest_first = row.argsort(descending=True, stable=True)
    best = row
    for power in range((len(row) - 1).bit_length()):
        best = _farther(
            kept,
            row,
            best,
            -torch.zeros_like(row).index_fill(0, largest_first[: 2**power], 1.0),
        )
    for _ in range(starts):
        turned = torch.rand(row.shape, dtype=row.dtype, generator=generator) < TURNED
        best = _farther(kept, row, best, torch.sign(best - row) * torch.where(turned, -1.0, 1.0))
    return filled(torch.zeros_like(whole), space, best)


def _farther(kept: Tensor, row: Tensor, best: Tensor, slope: Tensor) -> Tensor:
    """Increase the distance from a start slope; return the end point if it is farther than the best, else the best."""
    reached = -1.0
    while True:
        vertex = by_simplex(-slope, row, kept)[0]
        distance = float(total_variation(row, vertex))
        if distance <= reached + 1e-9:
            return best
        if distance > float(total_variation(row, best)):
            best = vertex
        reached, slope = distance, torch.sign(vertex - row)


def far_alternatives(
    weights: Map,
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    starts: int = 8,
    generator: Generator = None,
) -> Map:
    """Return ``far_alternative`` of every row of a head.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import certain_mass, far_alternatives, total_variation
        >>> T, weights = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([[0.1, 0.1, 0.8], [0.5, 0.5, 0.0]])
        >>> total_variation(weights, far_alternatives(weights, T))
        tensor([0.8000, 1.0000], dtype=torch.float64)
        >>> 1 - certain_mass(weights, T)
        tensor([1., 1.], dtype=torch.float64)
    """
    T = head_values(projected_values)
    rows = checked_weights(weights, T, visible)
    found = rows.clone()
    for index, space in enumerate(T.simplex_spaces(len(rows), visible)):
        found[index] = far_alternative(rows[index], space, starts=starts, generator=generator)
    return found


def _scaled_directions(
    rows: Tensor,
    spaces: list[SimplexSpace],
    count: int,
    method: Method,
    share: float | None,
    generator: Generator,
) -> Iterator[Tensor]:
    def directions(size: int, space: SimplexSpace) -> Tensor:
        draw = torch.rand if method == "bhardwaj" else torch.randn
        drawn = draw(size, space.nullity, dtype=rows.dtype, generator=generator).to(rows.device)
        return ((2 * drawn - 1).mul(COEFFICIENT) if method == "bhardwaj" else drawn) @ space.free.mT

    shared = all(space is spaces[0] for space in spaces)
    groups = [(len(rows), spaces[0])] if shared else [(1, space) for space in spaces]
    for _ in range(count):
        direction = torch.cat([directions(size, space) for size, space in groups])
        reach = largest_step(rows, direction)
        part: Tensor | float = 0.99 if share is None else share
        if share is None and method == "brunner":
            part = torch.rand(reach.shape, dtype=reach.dtype, generator=generator).to(reach.device)
        yield (rows + (part * reach)[:, None] * direction).clamp_min(0.0)
