"""Queries and keys that give other weights and the same output."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, head_values
from identilens.measures.attention.realisable import COPIES, MEMORY_LIMIT, head_formula, refuse_size
from identilens.measures.attention.simplex import total_variation
from identilens.measures.attention.softmax_map import SoftmaxMap, checked_head, output_constraints

OUTPUT_GOAL = 1e-12
"""Relative output error at which Gauss–Newton correction stops."""

OUTPUT_LIMIT = 1e-10
"""Largest relative output error of an accepted step."""

RIDGE = 1e-13
"""Share of the mean diagonal added to J Jᵀ, so that redundant conditions do not make it singular."""


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


class _Linearised:
    """The Jacobian J of the output in (Q, K) at one point, with orthonormal rows for each query."""

    def __init__(self, given: SoftmaxMap, queries: Tensor, keys: Tensor, weights: Tensor):
        self.given, self.queries, self.keys = given, queries, keys
        conditions, self.maps = output_constraints(given, weights)
        self.rows, self.owner = conditions.rows, conditions.owner
        self.felt, self.owned = self.rows @ keys, queries[self.owner]
        gram = self.rows @ self.rows.mT
        gram *= self.owned @ self.owned.mT
        gram += (self.owner[:, None] == self.owner[None, :]) * (self.felt @ self.felt.mT)
        diagonal = gram.diagonal()
        diagonal += RIDGE * diagonal.mean()
        self.factor = torch.linalg.cholesky_ex(gram).L

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return J (dQ, dK) / s."""
        return (self.felt * queries[self.owner]).sum(-1) + ((self.rows @ keys) * self.owned).sum(-1)

    def least_move(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (dQ, dK) of least norm with J (dQ, dK) / s = target."""
        multipliers = torch.cholesky_solve(target[:, None], self.factor)
        queries = torch.zeros_like(self.queries).index_add_(0, self.owner, multipliers * self.felt)
        return queries, self.rows.mT @ (multipliers * self.owned)

    def tangent(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of (dQ, dK) in the kernel of J; projected twice, to remove rounding."""
        for _ in range(2):
            move = self.least_move(self.forward(queries, keys))
            queries, keys = queries - move[0], keys - move[1]
        return queries, keys

    def correction(self, difference: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least (dQ, dK) that undoes the effect of a change of the weights on the output."""
        target = [-(self.maps[index] @ (self.given.kept[index].mT @ row)) for index, row in enumerate(difference)]
        queries, keys = self.least_move(torch.cat(target))
        return queries / self.given.scaling, keys / self.given.scaling


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
        raise InputError(f"expected a distance in (0, 1); got {distance}; it is a mean total variation distance.")
    T = head_values(projected_values)
    given = checked_head(queries, keys, T, scaling, visible, bias)
    size = sum(basis.shape[1] for basis in given.kept)
    refuse_size(COPIES * 8 * size * size, memory_limit, head_formula(given))
    walk = _Walk(given, generator)
    step = 0.05
    for _ in range(max_steps):
        if walk.distance >= distance or step < 1e-7:
            break
        step = walk.advance(step, distance)
    lost = torch.linalg.matrix_norm((walk.weights - walk.original) @ T.compact)
    error = float(lost / torch.linalg.matrix_norm(walk.original @ T.compact).clamp_min(1e-300))
    apart, reached = total_variation(walk.original, walk.weights), walk.distance >= distance
    return RealisableAlternative(
        walk.queries, walk.keys, walk.weights, walk.original, walk.distance, apart, error, reached, walk.steps
    )


class _Walk:
    def __init__(self, given: SoftmaxMap, generator: torch.Generator | None):
        self.given = given
        self.queries, self.keys = given.queries, given.keys
        self.original = self.weights = given.weights(self.queries, self.keys)
        self.scale = max(self._output_norm(self.original), 1e-300)
        self.first = torch.randn(self.original.shape, dtype=torch.float64, generator=generator).to(self.keys.device)
        self.distance, self.steps = 0.0, 0

    def advance(self, step: float, goal: float) -> float:
        """Make one step and return the length of the next."""
        here = _Linearised(self.given, self.queries, self.keys, self.weights)
        slope_q, slope_k = here.tangent(*self._slope())
        length = torch.sqrt((slope_q**2).sum() + (slope_k**2).sum())
        reach = torch.sqrt((self.queries**2).sum() + (self.keys**2).sum())
        if not length > 1e-12 * reach:
            return 0.0
        slope_q, slope_k = slope_q * (reach / length), slope_k * (reach / length)
        while step >= 1e-7:
            moved = self._corrected(here, self.queries + step * slope_q, self.keys + step * slope_k)
            if moved is not None:
                distance = float(total_variation(self.original, moved[2]).mean())
                if distance > 1.02 * goal and step > 1e-5:
                    step *= max(0.1, (1.01 * goal - self.distance) / (distance - self.distance))
                    continue
                if distance > self.distance:
                    self.queries, self.keys, self.weights = moved
                    self.distance, self.steps = distance, self.steps + 1
                    return min(1.6 * step, 0.3)
            step /= 2
        return 0.0

    def _slope(self) -> tuple[Tensor, Tensor]:
        """Return the gradient of a smooth mean total variation in Q and K; at A itself a random direction."""
        change = self.weights - self.original
        pull = change / torch.sqrt(change**2 + 1e-6) if self.steps else self.first
        logits = self.weights * (pull - (self.weights * pull).sum(-1, keepdim=True))
        return logits @ self.keys, logits.mT @ self.queries

    def _corrected(self, here: _Linearised, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return to the same output with the Jacobian of the step's start; None if that does not converge."""
        last = float("inf")
        for _ in range(20):
            weights = self.given.weights(queries, keys)
            error = self._output_norm(weights - self.original) / self.scale
            if error <= OUTPUT_GOAL or (error <= OUTPUT_LIMIT and error > 0.5 * last):
                return queries, keys, weights
            if not error <= 0.9 * last:
                return None
            last = error
            move_q, move_k = here.correction(weights - self.original)
            queries, keys = queries + move_q, keys + move_k
        return None

    def _output_norm(self, weights: Tensor) -> float:
        if self.given.shared:
            return float(torch.linalg.vector_norm(weights @ self.given.kept[0]))
        parts = [row @ basis for row, basis in zip(weights, self.given.kept, strict=True)]
        return float(torch.linalg.vector_norm(torch.cat(parts)))
