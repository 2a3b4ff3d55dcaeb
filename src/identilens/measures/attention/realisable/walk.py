"""Walking from a head's attention to another one with the same output, in whatever makes its logits."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from identilens.measures.attention.realisable.softmax_map import RowOutputs
from identilens.measures.attention.simplex import total_variation

OUTPUT_GOAL = 1e-12
"""Relative output error at which Gauss–Newton correction stops."""

OUTPUT_LIMIT = 1e-10
"""Largest relative output error of an accepted step."""

_EXACT = 1e-15
"""Relative output error that the last correction aims at: it goes on while that helps."""


@runtime_checkable
class Linearised(Protocol):
    """The Jacobian J of the output at one point, with orthonormal rows for each query."""

    maps: list[Tensor]

    def forward(self, move: Sequence[Tensor]) -> Tensor:
        """Return J times a move, over the family's unit."""
        ...

    def least_move(self, target: Tensor) -> tuple[Tensor, ...]:
        """Return the least move that J takes to the unit times the target."""
        ...


@runtime_checkable
class Family(RowOutputs, Protocol):
    """Attention as a function of a point: queries and keys, or the parameters that make them."""

    @property
    def start(self) -> tuple[Tensor, ...]:
        """The point that gives the head's own attention."""
        ...

    @property
    def unit(self) -> float:
        """Factor of the logits that ``slope`` and ``linearised`` leave out."""
        ...

    def at(self, point: Sequence[Tensor]) -> Tensor:
        """Return the attention at a point."""
        ...

    def slope(self, logits: Tensor, point: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the gradient at a point, over the unit, of a function whose gradient in the logits is given."""
        ...

    def linearised(self, weights: Tensor, point: Sequence[Tensor]) -> Linearised:
        """Return the Jacobian of the output at a point with these weights."""
        ...


_LEAST_OUTPUT = 1e-3
"""Share of the weights' norm that the output's norm counts as at least."""


class Walk:
    """A walk along the kernel of the Jacobian, away from the attention at the start, with the output unchanged.

    ``rows`` are those whose distance counts; ``goal`` is the relative error at which a correction is complete.
    """

    def __init__(
        self,
        family: Family,
        generator: torch.Generator | None,
        rows: slice = slice(None),
        goal: float = OUTPUT_GOAL,
    ) -> None:
        self.family, self.rows, self.goal = family, rows, goal
        self.point = family.start
        self.original = self.weights = family.at(self.point)
        # Of even rows the centred output is 0: errors are then compared with the weights themselves.
        size = float(torch.linalg.vector_norm(self.original))
        self.scale = max(self._output_norm(self.original), _LEAST_OUTPUT * size)
        self.first = torch.randn(self.original.shape, dtype=torch.float64, generator=generator)
        self.first = self.first.to(self.original.device)
        self.distance, self.steps = 0.0, 0

    def go(self, distance: float, max_steps: int) -> None:
        """Walk until the attention is this far away, no step succeeds, or the steps are used up."""
        step = 0.05
        for _ in range(max_steps):
            if self.distance >= distance or step < 1e-7:
                break
            step = self._advance(step, distance)

    def polish(self) -> None:
        """Correct the output at the end as far as float64 goes."""
        self.goal = _EXACT
        here = self.family.linearised(self.weights, self.point)
        self.point, self.weights = self._corrected(here, self.point) or (self.point, self.weights)
        self.distance = self._distance(self.weights)

    @property
    def output_error(self) -> float:
        """‖(A' − A) C‖_F / max(‖A C‖_F, 0.001 ‖A‖_F), C the orthonormal bases of the outputs."""
        return self._output_norm(self.weights - self.original) / self.scale

    def _advance(self, step: float, goal: float) -> float:
        """Make one step and return the length of the next."""
        here = self.family.linearised(self.weights, self.point)
        # The gradient of a smooth mean total variation; at the start itself a random direction.
        change = self.weights - self.original
        pull = change / torch.sqrt(change**2 + 1e-6) if self.steps else self.first
        logits = self.weights * (pull - (self.weights * pull).sum(-1, keepdim=True))
        if self.rows != slice(None):
            logits = torch.zeros_like(logits).index_put_(
                (torch.arange(len(logits))[self.rows],), logits[self.rows]
            )
        slope: Sequence[Tensor] = self.family.slope(logits, self.point)
        whole = _length(slope)
        # Its part in the kernel of J; projected twice, to remove rounding.
        for _ in range(2):
            off = here.least_move(here.forward(slope))
            slope = [part - outside for part, outside in zip(slope, off, strict=True)]
        length, reach = _length(slope), _length(self.point)
        if not length > 1e-12 * whole:
            return 0.0
        slope = [part * (reach / length) for part in slope]
        while step >= 1e-7:
            moved = self._corrected(
                here, [one + step * part for one, part in zip(self.point, slope, strict=True)]
            )
            if moved is not None:
                distance = self._distance(moved[1])
                if distance > 1.02 * goal and step > 1e-5:
                    step *= max(0.1, (1.01 * goal - self.distance) / (distance - self.distance))
                    continue
                if distance > self.distance:
                    self.point, self.weights = moved
                    self.distance, self.steps = distance, self.steps + 1
                    return min(1.6 * step, 0.3)
            step /= 2
        return 0.0

    def _distance(self, weights: Tensor) -> float:
        return float(total_variation(self.original[self.rows], weights[self.rows]).mean())

    def _corrected(
        self, here: Linearised, point: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """Return to the same output with the Jacobian of the step's start; None if that does not converge."""
        last = float("inf")
        for _ in range(20):
            weights = self.family.at(point)
            error = self._output_norm(weights - self.original) / self.scale
            if error <= self.goal or (error <= OUTPUT_LIMIT and error > 0.5 * last):
                return tuple(point), weights
            if not error <= 0.9 * last:
                return None
            last = error
            difference = weights - self.original
            kept = self.family.kept
            # What J must give to undo the effect of the change on the output.
            undoing = [
                -(here.maps[index] @ (kept[index].mT @ row)) for index, row in enumerate(difference)
            ]
            move = here.least_move(torch.cat(undoing))
            point = [one + part / self.family.unit for one, part in zip(point, move, strict=True)]
        return None

    def _output_norm(self, weights: Tensor) -> float:
        kept = self.family.kept
        if self.family.shared:
            return float(torch.linalg.vector_norm(weights @ kept[0]))
        parts = [row @ basis for row, basis in zip(weights, kept, strict=True)]
        return float(torch.linalg.vector_norm(torch.cat(parts)))


def _length(parts: Sequence[Tensor]) -> Tensor:
    return torch.sqrt(torch.stack([(part**2).sum() for part in parts]).sum())
