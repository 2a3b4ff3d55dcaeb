"""Distance of pruned layers from their target: on random inputs, and on inputs that gradient ascent makes worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.lab.dyck.plain import PlainLayer, run_layers, without_dead_units

_LONGEST, _SHORTEST = 0.3, 0.01
"""Length of the first and of the last of the steps that are always taken."""


@dataclass(frozen=True)
class Search:
    """The inputs of a search for large errors.

    Attributes:
        inputs: Number of random sequences.
        length: Number of tokens in each; attention is causal, so shorter sequences are included.
        starts: Number of sequences from which gradient ascent starts; half are the worst random sequences.
        steps: Number of steps of the ascent.
        seed: Seed of the random sequences.
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
        sampled: The largest error on random inputs.
        maximised: The largest error found by gradient ascent, never below ``sampled``. Both are lower bounds of the
            largest error over all inputs, the one in Theorem 3: ascent may end in a local maximum.
    """

    sampled: float
    maximised: float


def approximation_error(
    target: Sequence[PlainLayer], pruned: Sequence[PlainLayer], search: Search
) -> ApproximationError:
    """Return the error of layers against their target on sequences whose tokens have norm at most 1, in float64.

    The first coordinates of the large layers are those of the target; their other outputs must be zero. Cost: a forward
    pass of ``inputs`` sequences, and ``steps`` forward and backward passes of ``starts`` sequences.
    """
    pruned = [without_dead_units(layer) for layer in pruned]
    size = target[0].value.shape[0]
    padding = (0, pruned[0].value.shape[0] - size)

    def errors(x: Float[Tensor, "batch n m"]) -> Float[Tensor, "batch n"]:
        expected = torch.nn.functional.pad(run_layers(target, x), padding)
        return torch.linalg.vector_norm(
            run_layers(pruned, torch.nn.functional.pad(x, padding)) - expected, dim=-1
        )

    generator = torch.Generator().manual_seed(search.seed)
    x = torch.randn(search.inputs, search.length, size, dtype=torch.float64, generator=generator)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # Half of the sequences have tokens of norm 1, the others also shorter tokens.
    x[::2] *= torch.rand(len(x[::2]), search.length, 1, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        sampled = torch.cat([errors(part) for part in x.split(200)]).amax(1)
    worst_first = x[sampled.argsort(descending=True)]
    worst = -(-search.starts // 2)
    starts = torch.cat([worst_first[:worst], x[: search.starts - worst]])
    largest = float(sampled.max())
    return ApproximationError(largest, max(largest, ascend(errors, starts, search.steps)))


def ascend(errors: Callable[[Tensor], Tensor], x: Float[Tensor, "start n m"], steps: int) -> float:
    """Return the largest token error that projected gradient ascent finds from some sequences.

    In the first half, steps become shorter and every step is taken, so that kinks of the ReLUs do not stop the search.
    In the second half, each sequence ascends from its worst input so far: a step is taken only if the error grows.
    After such a step the next step of the sequence is longer; otherwise it is shorter.
    """
    climbing = steps // 2
    taken = steps - climbing
    worst = x
    best, gradient = _slope(errors, x)
    for step in range(taken):
        x = _moved(x, gradient, _LONGEST * (_SHORTEST / _LONGEST) ** (step / taken))
        error, gradient = _slope(errors, x)
        worst = torch.where((error > best)[:, None, None], x, worst)
        best = best.maximum(error)
    x = worst
    best, gradient = _slope(errors, x)
    size = torch.full_like(best, _LONGEST)[:, None, None]
    for _ in range(climbing):
        moved = _moved(x, gradient, size)
        error, slope = _slope(errors, moved)
        better = (error > best)[:, None, None]
        best = best.maximum(error)
        x, gradient = torch.where(better, moved, x), torch.where(better, slope, gradient)
        size = size * torch.where(better, 1.5, 0.5)
    return float(best.max())


def _moved(x: Tensor, gradient: Tensor, size: Tensor | float) -> Float[Tensor, "start n m"]:
    """Return each token moved by ``size`` along its part of the gradient, and projected on the unit ball."""
    moved = x + size * torch.nn.functional.normalize(gradient, dim=-1, eps=1e-30)
    return moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True).clamp_min(1.0)


def _slope(
    errors: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Float[Tensor, " start"], Float[Tensor, "start n m"]]:
    """Return each sequence's largest token error and its gradient."""
    x = x.detach().requires_grad_()
    largest = errors(x).amax(1)
    (gradient,) = torch.autograd.grad(largest.sum(), x)
    return largest.detach(), gradient
