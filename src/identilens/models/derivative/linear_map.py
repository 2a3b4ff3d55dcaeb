"""The derivative of a function at one point, recorded once and then applied to many tangents at once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.models.derivative.batched import Product, Reshape, Sum
from identilens.models.derivative.memory import LiveBytes, OverBudgetError
from identilens.models.derivative.tracing import NotTraceableError, Step, Tracer


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A recorded derivative: its operations in order, and the size of its constants in bytes.

    ``dying`` has, for each step, the tensors that no later step needs. ``outputs`` are the numbers of the output
    tensors; None if an output does not depend on the input.
    """

    steps: tuple[Step, ...]
    dying: tuple[tuple[int, ...], ...]
    outputs: tuple[int | None, ...]
    shapes: tuple[torch.Size, ...]
    nbytes: int

    @torch.no_grad()
    def __call__(self, tangents: Float[Tensor, "count ..."]) -> tuple[Tensor, ...]:
        """Return the derivative [count, ...] of every output in the direction of every tangent."""
        alive = {0: tangents}
        for step, dying in zip(self.steps, self.dying, strict=True):
            made = step.run(*(alive[number] for number in step.inputs))
            alive.update(zip(step.outputs, made if isinstance(made, tuple) else (made,), strict=True))
            del made
            for number in dying:
                del alive[number]
        return tuple(
            tangents.new_zeros(len(tangents), *shape) if number is None else alive[number]
            for number, shape in zip(self.outputs, self.shapes, strict=True)
        )


@torch.no_grad()
def linear_map(
    function: Callable[[Tensor], tuple[Tensor, ...]], inputs: Float[Tensor, "..."], budget: int
) -> LinearMap | None:
    """Return the recorded derivative of a function, or None if it is not reliable or too large.

    What depends only on the point is stored as constants (`torch.func.jvp` computes it again for every tangent). Rules
    are composed to `RowMap`s. All tangents are multiplied with a matrix in one product.

    The derivative is computed for one random tangent while it is recorded. The recording is then run on that tangent
    and must give the same result, within the square root of the machine epsilon (3.5e-4 for single, 1.5e-8 for double
    precision) times the largest number. A linear map that is right for a random tangent is right for all tangents.

    At most ``budget`` bytes, including the constants, are in memory while recording.

    Cost:
        Two forward passes, and the memory of these and of the constants.
    """
    tangent = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(inputs)
    try:
        with LiveBytes(limit=budget) as meter:
            tracer = Tracer(tangent)
            with tracer:
                expected = torch.func.jvp(function, (inputs,), (tangent,))[1]
            outputs = tuple(tracer.number(output) for output in expected)
            steps = _fused(_needed(tracer.steps, outputs), outputs)
            tolerance = tracer.coarsest**0.5
            del tracer
            shapes = tuple(output.shape for output in expected)
            mapped = LinearMap(steps, _dying(steps, outputs), outputs, shapes, 0)
            if not _agree(mapped(tangent[None]), expected, tolerance):
                return None
            del expected
    except (NotTraceableError, OverBudgetError, RuntimeError):
        # PyTorch raises RuntimeError for operations that it cannot batch. An error of the function itself will be
        # raised again when its derivative is computed without recording.
        return None
    return replace(mapped, nbytes=meter.live)


def _agree(given: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> bool:
    pairs = zip(given, expected, strict=True)
    return all(bool((one[0] - other).abs().max() <= tolerance * other.abs().max()) for one, other in pairs)


def _needed(steps: list[Step], outputs: tuple[int | None, ...]) -> list[Step]:
    needed, kept = {number for number in outputs if number is not None}, []
    for step in reversed(steps):
        if needed.intersection(step.outputs):
            needed.update(step.inputs)
            kept.append(step)
    return kept[::-1]


def _fused(steps: list[Step], outputs: tuple[int | None, ...]) -> tuple[Step, ...]:
    """Return the steps, where a sum of a product and another tensor is computed by the product itself."""
    uses = Counter([*outputs, *(number for step in steps for number in step.inputs)])
    made = {number: index for index, step in enumerate(steps) for number in step.outputs}
    fused: list[Step | None] = list(steps)

    def producer(number: int) -> list[int]:
        """Return the product whose result only this sum uses, and the views between, as indices of steps."""
        chain: list[int] = []
        while uses[number] == 1 and number in made:
            step = fused[made[number]]
            chain.append(made[number])
            if step is not None and isinstance(step.run, Product):
                return chain if len(step.inputs) == 1 else []
            if step is None or not isinstance(step.run, Reshape) or not step.run.squeezes:
                break
            number = step.inputs[0]
        return []

    for index, step in enumerate(steps):
        if not isinstance(step.run, Sum):
            continue
        # The later of two products is added to the earlier one.
        chains = ((producer(number), other) for number, other in zip(step.inputs, step.inputs[::-1], strict=True))
        chain, other = max(chains, key=lambda pair: pair[0][-1:])
        product = fused[chain[-1]] if chain else None
        if product is not None:
            fused[index] = Step(product.run, (*product.inputs, other), step.outputs)
            for place in chain:
                fused[place] = None
    return tuple(step for step in fused if step is not None)


def _dying(steps: tuple[Step, ...], outputs: tuple[int | None, ...]) -> tuple[tuple[int, ...], ...]:
    last = {number: index for index, step in enumerate(steps) for number in (*step.outputs, *step.inputs)}
    dying: list[list[int]] = [[] for _ in steps]
    for number, index in last.items():
        if number not in outputs:
            dying[index].append(number)
    return tuple(map(tuple, dying))
