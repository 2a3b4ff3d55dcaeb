"""Walking to other attention with the same output, in the queries and keys."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.functional import jvp, vjp
from torch.linalg import vector_norm

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

MAX_STEPS = 300
"""Steps of a walk at most."""


@dataclass(frozen=True, kw_only=True)
class RealisableAlternative:
    """A point that makes other logits, and the weights of these.

    Attributes:
        point: Q' and K', as the coordinates of the `SoftmaxMap` take them.
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
    generator: torch.Generator | None = None,
) -> RealisableAlternative:
    """Return a point with which a head has other attention, at a distance, and all heads the same outputs.

    The walk increases the distance from A along the kernel of the Jacobian of F = A C in the point, starting in a
    random direction. After every step Gauss–Newton returns to F = const; a step from which it does not return is
    halved. The search is local; ``reached`` and ``distance`` say how far it came. Each step solves a dense system of
    N = Σ rank([T, 1]) − 1 equations: O(N² (n + d_k) + N³).

    Args:
        heads: A head (`softmax_map`), or heads that share their keys (`SoftmaxMap`).
        distance: Requested mean total variation distance, in (0, 1).
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
        InputError: For a problem of more than 2 GiB.
    """
    walk = _Walk(heads, generator)
    walk.go(distance)
    return RealisableAlternative(
        point=walk.point,
        weights=walk.weights,
        distance=walk.distance,
        output_error=walk.error(heads.outputs(walk.weights - walk.original)),
        reached=walk.distance >= distance * (1 - 1e-6),
        steps=walk.steps,
    )


class _Walk:
    """A walk along the kernel of the Jacobian, away from the attention at the start, with the output unchanged."""

    def __init__(self, heads: SoftmaxMap, generator: torch.Generator | None) -> None:
        self.heads, self.point = heads, heads.coordinates.start
        self.original = heads.weights(self.point)
        # Of even rows the centred output is 0: errors are then compared with the weights themselves.
        output = float(vector_norm(heads.outputs(self.original)))
        self.scale = max(output, 1e-3 * float(vector_norm(self.original)))
        first = torch.randn(self.original.shape, dtype=torch.float64, generator=generator)
        self.first = first.to(self.original.device)
        self.distance, self.steps = 0.0, 0

    def go(self, distance: float) -> None:
        """Walk until the attention is this far away, no step succeeds, or the steps are used up."""
        step, direction = 0.05, self._direction()
        while (
            direction is not None
            and self.steps < MAX_STEPS
            and self.distance < distance
            and step >= _LEAST_STEP
        ):
            point = self._corrected(self.point + step * direction)
            far = 0.0 if point is None else self._distance(point)
            if point is not None and self.distance < far <= 1.02 * distance:
                self.point, self.distance, self.steps = point, far, self.steps + 1
                step, direction = min(1.6 * step, 0.3), self._direction()
            else:
                step /= 2
        # With the Jacobian at the end the output comes as near as float64 goes.
        if (point := self._corrected(self.point)) is not None:
            self.point, self.distance = point, self._distance(point)
        self.weights = self.heads.weights(self.point)

    def error(self, outputs: Tensor) -> float:
        """Return the relative size of a change of the outputs."""
        return float(vector_norm(outputs)) / self.scale

    def _direction(self) -> Tensor | None:
        """Return the move in the kernel of J, as long as the point, on which the distance grows most.

        J is the Jacobian of the outputs at the present point, with orthonormal rows for each row of attention.
        """
        self.here, self.weights = self.point, self.heads.weights(self.point)
        self.conditions, self.undo = output_conditions(self.heads, self.weights)
        gram = self.heads.coordinates.gram(self.conditions, self.here)
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        self.factor = torch.linalg.cholesky_ex(gram).L
        # The gradient of a smooth mean total variation; at the start itself a random direction.
        moved = self.weights - self.original
        pull = moved / torch.sqrt(moved**2 + 1e-6) if self.steps else self.first
        logits = torch.zeros_like(pull)
        logits[self.heads.rows] = pull[self.heads.rows]
        slope = self._gradient(
            self.weights * (logits - (self.weights * logits).sum(-1, keepdim=True))
        )
        direction = slope
        # Projected twice, to remove rounding.
        for _ in range(2):
            _, change = jvp(self.heads.coordinates.logits, self.here, direction)
            direction = direction - self._least_move(change, self.conditions.rows)  # pyright: ignore[reportArgumentType]
        length = vector_norm(direction)
        return (
            direction * (vector_norm(self.point) / length)
            if length > 1e-12 * vector_norm(slope)
            else None
        )

    def _gradient(self, logits: Tensor) -> Tensor:
        """Return the gradient in the point of a function with this gradient in the logits."""
        return vjp(self.heads.coordinates.logits, self.here, logits)[1]  # pyright: ignore[reportReturnType]

    def _least_move(self, change: Tensor, parts: Tensor) -> Tensor:
        """Return the least move that J takes to the parts of each row's change that conditions ask for."""
        rows, owner = self.conditions.rows, self.conditions.owner
        target = (parts * change[owner]).sum(-1, keepdim=True)
        multipliers = torch.cholesky_solve(target, self.factor)
        return self._gradient(
            torch.zeros_like(self.weights).index_add(0, owner, multipliers * rows)
        )

    def _distance(self, point: Tensor) -> float:
        rows = self.heads.rows
        return float(total_variation(self.original, self.heads.weights(point))[rows].mean())

    def _corrected(self, point: Tensor) -> Tensor | None:
        """Return to the same output with the Jacobian of the step's start; None if that does not converge."""
        last = float("inf")
        for _ in range(30):
            outputs = self.heads.outputs(self.heads.weights(point) - self.original)
            error = self.error(outputs)
            if error <= _EXACT or (error <= OUTPUT_LIMIT and error > 0.5 * last):
                return point
            if not error <= 0.9 * last:
                return None
            last, point = error, point - self._least_move(outputs, self.undo)
        return None
