"""How far pruned layers lie from their target: over random inputs, and over inputs that gradient ascent makes worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.dyck.plain import PlainLayer, run_layers, without_dead_units

_LONGEST, _SHORTEST = 0.3, 0.01
"""How far a token moves in the first and in the last step that is taken whatever it does to the error."""


@dataclass(frozen=True)
class Search:
    """Where errors are looked for.

    Attributes:
        inputs: Random sequences.
        length: Tokens in each; attention is causal, so that shorter sequences are among them.
        starts: Sequences that gradient ascent starts from: half of them the worst of the random ones.
        steps: Steps of the ascent.
        seed: Of the random sequences.
    """

    inputs: int = 2000
    length: int = 12
    starts: int = 32
    steps: int = 200
    seed: int = 0


@dataclass(frozen=True)
class ApproximationError:
    """Largest ‖·‖₂ of a token's error (Wen et al. 2023, Definitions 5 and 6).

    Attributes:
        sampled: Over random inputs.
        maximised: The largest that gradient ascent found, never below ``sampled``. Like it a lower bound of the largest
            over all inputs, which Theorem 3 speaks of: ascent may end in a local maximum.
    """

    sampled: float
    maximised: float


def approximation_error(
    target: Sequence[PlainLayer], pruned: Sequence[PlainLayer], search: Search
) -> ApproximationError:
    """Return how far layers are from their target on sequences whose tokens have length at most 1, in float64.

    The large layers read and write the target's coordinates first, and must write nothing else. The cost is that of
    running ``inputs`` sequences, and ``starts`` of them forth and back ``steps`` times.
    """
    errors = partial(_token_errors, target, [without_dead_units(layer) for layer in pruned])
    x = _random_inputs(target[0].value.shape[0], search)
    with torch.no_grad():
        sampled = torch.cat([errors(part) for part in x.split(200)]).amax(1)
    worst_first = x[sampled.argsort(descending=True)]
    worst = -(-search.starts // 2)
    starts = torch.cat([worst_first[:worst], x[: search.starts - worst]])
    largest = float(sampled.max())
    return ApproximationError(largest, max(largest, ascend(errors, starts, search.steps)))


def ascend(errors: Callable[[Tensor], Tensor], x: Float[Tensor, "start n m"], steps: int) -> float:
    """Return the largest token error that projected gradient ascent from some sequences finds.

    In the first half of the steps lengths fall and every step is taken: kinks of the ReLUs hold nothing up. In the
    second half each sequence climbs from the worst place on its way.
    """
    climbing = steps // 2
    return float(_climb(errors, _wander(errors, x, steps - climbing), climbing).max())


def _wander(errors: Callable[[Tensor], Tensor], x: Tensor, steps: int) -> Float[Tensor, "start n m"]:
    """Return the worst inputs on the way of steps that are all taken, the start among them."""
    worst = x
    best, gradient = _slope(errors, x)
    for step in range(steps):
        x = _moved(x, gradient, _LONGEST * (_SHORTEST / _LONGEST) ** (step / steps))
        found, gradient = _slope(errors, x)
        worst = torch.where((found > best)[:, None, None], x, worst)
        best = best.maximum(found)
    return worst


def _climb(errors: Callable[[Tensor], Tensor], x: Tensor, steps: int) -> Float[Tensor, " start"]:
    """Return the errors after steps of which only those are taken that make an error larger.

    After such a step a sequence's next one is longer, after any other shorter.
    """
    best, gradient = _slope(errors, x)
    size = torch.full_like(best, _LONGEST)[:, None, None]
    for _ in range(steps):
        moved = _moved(x, gradient, size)
        found, slope = _slope(errors, moved)
        better = (found > best)[:, None, None]
        best = best.maximum(found)
        x, gradient = torch.where(better, moved, x), torch.where(better, slope, gradient)
        size = size * torch.where(better, 1.5, 0.5)
    return best


def _moved(x: Tensor, gradient: Tensor, size: Tensor | float) -> Float[Tensor, "start n m"]:
    """Return each token moved so far along its part of the gradient, and back onto the unit ball."""
    moved = x + size * torch.nn.functional.normalize(gradient, dim=-1, eps=1e-30)
    return moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True).clamp_min(1.0)


def _slope(errors: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Float[Tensor, " start"], Float[Tensor, "start n m"]]:
    """Return each sequence's largest token error and its gradient."""
    x = x.detach().requires_grad_()
    largest = errors(x).amax(1)
    (gradient,) = torch.autograd.grad(largest.sum(), x)
    return largest.detach(), gradient


def _random_inputs(size: int, search: Search) -> Float[Tensor, "input n m"]:
    """Return random sequences; half of them have tokens of length exactly 1, the others shorter ones too."""
    generator = torch.Generator().manual_seed(search.seed)
    x = torch.randn(search.inputs, search.length, size, dtype=torch.float64, generator=generator)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    x[::2] *= torch.rand(len(x[::2]), search.length, 1, dtype=torch.float64, generator=generator)
    return x


def _token_errors(
    target: Sequence[PlainLayer], pruned: Sequence[PlainLayer], x: Float[Tensor, "batch n m"]
) -> Float[Tensor, "batch n"]:
    beside = (0, pruned[0].value.shape[0] - x.shape[-1])
    wanted = torch.nn.functional.pad(run_layers(target, x), beside)
    return torch.linalg.vector_norm(run_layers(pruned, torch.nn.functional.pad(x, beside)) - wanted, dim=-1)
