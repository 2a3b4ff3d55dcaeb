"""Queries and keys that give other weights and the same output."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, head_values
from identilens.linalg.checks import explained
from identilens.measures.attention.realisable.dimension import (
    COPIES,
    MEMORY_LIMIT,
    head_formula,
    refuse_size,
)
from identilens.measures.attention.realisable.softmax_map import checked_head
from identilens.measures.attention.realisable.walk import OUTPUT_GOAL, Walk
from identilens.measures.attention.simplex import total_variation


@dataclass(frozen=True)
class RealisableAlternative:
    """Q', K' and their weights.

    Attributes:
        queries: Q'.
        keys: K'.
        weights: A', the softmax of their product.
        original: A.
        distance: Mean total variation distance between the rows of A and A'.
        row_distance: The distance of each row.
        output_error: ‖(A' − A) T‖_F / ‖A T‖_F.
        reached: Whether ``distance`` is at least the requested distance.
        steps: Number of accepted steps.
    """

    queries: Float[Tensor, "query d_k"]
    keys: Float[Tensor, "key d_k"]
    weights: Float[Tensor, "query key"]
    original: Float[Tensor, "query key"]
    distance: float
    row_distance: Float[Tensor, " query"]
    output_error: float
    reached: bool
    steps: int


@explained
def realisable_alternative(
    queries: Float[Tensor, "query d_k"],
    keys: Float[Tensor, "key d_k"],
    projected_values: HeadValues,
    *,
    distance: float = 0.1,
    scaling: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    bias: Float[Tensor, "query key"] | None = None,
    max_steps: int = 300,
    memory_limit: int = MEMORY_LIMIT,
    generator: torch.Generator | None = None,
) -> RealisableAlternative:
    """Return Q', K' whose attention is at the given distance from the head's and gives the same output.

    The walk increases the distance from A along the kernel of the Jacobian of F(Q, K) = softmax(s Q Kᵀ) T, starting in
    a random direction. After every step Gauss–Newton returns to F = const; a step from which it does not return is
    halved. The search is local and takes at most ``max_steps`` steps; ``reached`` and ``distance`` say how far it came.
    Each step solves a dense system of N = Σ rank([T, 1]) − 1 equations: O(N² (n + d_k) + N³). ``distance`` is the
    requested mean total variation distance, in (0, 1). The arguments of the head are those of `checked_head`;
    ``generator`` draws the first direction.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import realisable_alternative
        >>> generator = torch.Generator().manual_seed(0)
        >>> queries, keys = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
        >>> T = torch.randn(12, 2, generator=generator, dtype=torch.float64)
        >>> found = realisable_alternative(queries, keys, T, distance=0.05, generator=generator)
        >>> found.reached, round(found.distance, 3), found.output_error < 1e-9
        (True, 0.05, True)

    Raises:
        InputError: Tensors that do not belong together, or a problem too large for ``memory_limit``.
    """
    if not 0 < distance < 1:
        raise InputError(
            f"expected a distance in (0, 1); got {distance}; it is a mean total variation distance."
        )
    T = head_values(projected_values)
    given = checked_head(queries, keys, T, scaling, visible, bias)
    size = sum(basis.shape[1] for basis in given.kept)
    refuse_size(COPIES * 8 * size * size, memory_limit, head_formula(given))
    walk = Walk(given, generator)
    walk.go(distance, max_steps)
    error = _output_error(walk, T.compact)
    if error > OUTPUT_GOAL:
        walk.polish()
        error = _output_error(walk, T.compact)
    queries, keys = walk.point
    apart, reached = total_variation(walk.original, walk.weights), walk.distance >= distance
    return RealisableAlternative(
        queries, keys, walk.weights, walk.original, walk.distance, apart, error, reached, walk.steps
    )


def _output_error(walk: Walk, T: Float[Tensor, "key rank"]) -> float:
    lost = torch.linalg.matrix_norm((walk.weights - walk.original) @ T)
    return float(lost / torch.linalg.matrix_norm(walk.original @ T).clamp_min(1e-300))
