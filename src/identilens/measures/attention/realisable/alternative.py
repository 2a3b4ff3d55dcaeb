"""Walking to other attention with the same output, in whatever makes the logits."""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.functional import jvp, vjp
from torch.linalg import vector_norm

from identilens.errors import InputError
from identilens.measures.attention.realisable.coordinates import MEMORY_LIMIT, refuse_size
from identilens.measures.attention.realisable.softmax_map import SoftmaxMap, output_conditions
from identilens.measures.attention.simplex import total_variation

RIDGE = 1e-13
"""Share of the mean diagonal added to J Jᵀ, so that redundant conditions do not make it singular."""

OUTPUT_LIMIT = 1e-10
"""Largest relative output error of an accepted step."""

_EXACT = 1e-15
"""Relative output error that Gauss–Newton aims at: it goes on while that helps."""

_LEAST_STEP = 1e-7
"""Shortest step, as a share of the point's length."""

_LEAST_OUTPUT = 1e-3
"""Share of the weights' norm that the output's norm counts as at least."""


@dataclass(frozen=True, kw_only=True)
class RealisableAlternative:
    """A point that makes other logits, and the weights of these.

    Attributes:
        point: Q' and K', or θ', as the coordinates of the `SoftmaxMap` take them.
        weights: A' of all rows.
        distance: Mean total variation distance between the rows of A and A' of the head that is looked at.
        output_error: ‖(A' − A) C‖_F / max(‖A C‖_F, 0.001 ‖A‖_F), C the orthonormal bases of the outputs.
        reached: Whether ``distance`` is at least the requested distance.
        steps: Number of accepted steps.
    """

    point: Float[Tensor, " coordinate"]
    weights: Float[Tensor, "row key"]
    distance: float
    output_error: float
    reached: bool
    steps: int


def realisable_alternative(
    heads: SoftmaxMap,
    *,
    distance: float = 0.1,
    max_steps: int = 300,
    memory_limit: int = MEMORY_LIMIT,
    generator: torch.Generator | None = None,
) -> RealisableAlternative:
    """Return a point with which a head has other attention, at a distance, and all heads the same outputs.

    The walk increases the distance from A along the kernel of the Jacobian of F = A C in the point, starting in a
    random direction. After every step Gauss–Newton returns to F = const; a step from which it does not return is
    halved. The search is local; ``reached`` and ``distance`` say how far it came. Each step solves a dense system of
    N = Σ rank([T, 1]) − 1 equations: O(N² (n + d_k) + N³) in queries and keys; in parameters with the Jacobian, too.

    Args:
        heads: A head (`softmax_map`), or heads that make their logits from the same parameters (`SoftmaxMap`).
        distance: Requested mean total variation distance, in (0, 1).
        max_steps: Steps at most.
        memory_limit: Bytes that a dense factorisation may take.
        generator: Draws the first direction.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import realisable_alternative, softmax_map
        >>> generator = torch.Generator().manual_seed(0)
        >>> queries, keys = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
        >>> T = torch.randn(12, 2, generator=generator, dtype=torch.float64)
        >>> head = softmax_map(queries, keys, T)
        >>> found = realisable_alternative(head, distance=0.05, generator=generator)
        >>> found.reached, round(found.distance, 3), found.output_error < 1e-9
        (True, 0.05, True)

    Raises:
        InputError: For a distance outside (0, 1), or a problem too large for ``memory_limit``.
    """
    if not 0 < distance < 1:
        raise InputError(
            f"expected a distance in (0, 1); got {distance}; it is a mean total variation distance."
        )
    conditions = int(heads.ranks.sum())
    width = conditions if heads.coordinates.d_k else len(heads.coordinates.start)
    refuse_size(conditions * max(conditions, width), memory_limit)
    walk = _Walk(heads, generator)
    walk.go(distance, max_steps)
    change = walk.weights - walk.original
    return RealisableAlternative(
        point=walk.point,
        weights=walk.weights,
        distance=walk.distance,
        output_error=walk.error(heads.outputs(change)),
        reached=walk.distance >= distance * (1 - 1e-6),
        steps=walk.steps,
    )


class _Linearised:
    """The Jacobian J of the outputs at one point, with orthonormal rows for each row of attention."""

    def __init__(self, heads: SoftmaxMap, point: Tensor, weights: Tensor) -> None:
        self.logits, self.point, self.weights = heads.coordinates.logits, point, weights
        self.conditions, self.undo = output_conditions(heads, weights)
        gram = heads.coordinates.gram(self.conditions, point)
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        self.factor = torch.linalg.cholesky_ex(gram).L

    def gradient(self, logits: Tensor) -> Tensor:
        """Return the gradient in the point of a function with this gradient in the logits."""
        _, gradient = vjp(self.logits, self.point, logits)
        return cast(Tensor, gradient)

    def least_move(self, target: Tensor) -> Tensor:
        """Return the least move that J takes to the target."""
        rows, owner = self.conditions.rows, self.conditions.owner
        multipliers = torch.cholesky_solve(target[:, None], self.factor)
        return self.gradient(torch.zeros_like(self.weights).index_add(0, owner, multipliers * rows))

    def in_kernel(self, move: Tensor) -> Tensor:
        """Return the part of a move that J takes to zero; projected twice, to remove rounding."""
        for _ in range(2):
            change = jvp(self.logits, self.point, move)[1][self.conditions.owner]
            move = move - self.least_move((self.conditions.rows * change).sum(-1))
        return move

    def undoing(self, outputs: Tensor) -> Tensor:
        """Return the least move that undoes a change of the outputs, to first order."""
        return -self.least_move((self.undo * outputs[self.conditions.owner]).sum(-1))


class _Walk:
    """A walk along the kernel of the Jacobian, away from the attention at the start, with the output unchanged."""

    def __init__(self, heads: SoftmaxMap, generator: torch.Generator | None) -> None:
        self.heads, self.point = heads, heads.coordinates.start
        self.original = self.weights = heads.weights(self.point)
        # Of even rows the centred output is 0: errors are then compared with the weights themselves.
        size, output = (vector_norm(one) for one in (self.original, heads.outputs(self.original)))
        self.scale = max(float(output), _LEAST_OUTPUT * float(size))
        first = torch.randn(self.original.shape, dtype=torch.float64, generator=generator)
        self.first = first.to(self.original.device)
        self.distance, self.steps = 0.0, 0

    def go(self, distance: float, max_steps: int) -> None:
        """Walk until the attention is this far away, no step succeeds, or the steps are used up."""
        step = 0.05
        while self.steps < max_steps and self.distance < distance and step >= _LEAST_STEP:
            step = self._advance(step, distance)
        # With the Jacobian at the end the output comes as near as float64 goes.
        here = _Linearised(self.heads, self.point, self.weights)
        self.point, self.weights = self._corrected(here, self.point) or (self.point, self.weights)
        self.distance = self._distance(self.weights)

    def error(self, outputs: Tensor) -> float:
        """Return the relative size of a change of the outputs."""
        return float(vector_norm(outputs)) / self.scale

    def _advance(self, step: float, goal: float) -> float:
        """Make one step and return the length of the next, 0 if none succeeds."""
        here = _Linearised(self.heads, self.point, self.weights)
        direction = self._direction(here)
        while direction is not None and step >= _LEAST_STEP:
            moved = self._corrected(here, self.point + step * direction)
            distance = self._distance(moved[1]) if moved else 0.0
            if distance > 1.02 * goal and step > 1e-5:
                step *= max(0.1, (1.01 * goal - self.distance) / (distance - self.distance))
            elif moved and distance > self.distance:
                self.point, self.weights = moved
                self.distance, self.steps = distance, self.steps + 1
                return min(1.6 * step, 0.3)
            else:
                step /= 2
        return 0.0

    def _direction(self, here: _Linearised) -> Tensor | None:
        """Return the move in the kernel of J, as long as the point, on which the distance grows most."""
        # The gradient of a smooth mean total variation; at the start itself a random direction.
        change = self.weights - self.original
        pull = change / torch.sqrt(change**2 + 1e-6) if self.steps else self.first
        logits = torch.zeros_like(pull)
        logits[self.heads.rows] = pull[self.heads.rows]
        slope = here.gradient(
            self.weights * (logits - (self.weights * logits).sum(-1, keepdim=True))
        )
        direction = here.in_kernel(slope)
        length = vector_norm(direction)
        if not length > 1e-12 * vector_norm(slope):
            return None
        return direction * (vector_norm(self.point) / length)

    def _distance(self, weights: Tensor) -> float:
        rows = self.heads.rows
        return float(total_variation(self.original[rows], weights[rows]).mean())

    def _corrected(self, here: _Linearised, point: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return to the same output with the Jacobian of the step's start; None if that does not converge."""
        last = float("inf")
        for _ in range(30):
            weights = self.heads.weights(point)
            outputs = self.heads.outputs(weights - self.original)
            error = self.error(outputs)
            if error <= _EXACT or (error <= OUTPUT_LIMIT and error > 0.5 * last):
                return point, weights
            if not error <= 0.9 * last:
                return None
            last, point = error, point + here.undoing(outputs)
        return None
