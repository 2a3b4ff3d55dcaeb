"""Pruned random transformers: how close they come to a small target (Theorem 3), and the pair of Corollary 3."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, pad

from identilens.lab.drawing import normals, seeded, uniforms
from identilens.lab.dyck.plain import PlainLayer, run_layers, small_target, without_dead_units
from identilens.lab.dyck.pruning import prune_to, random_transformer

_LONGEST, _SHORTEST = 0.3, 0.01
"""Length of the first and of the last of the steps that are always taken."""


def approximation_error(
    target: Sequence[PlainLayer],
    pruned: Sequence[PlainLayer],
    *,
    inputs: int,
    starts: int,
    steps: int,
    length: int = 12,
) -> tuple[float, float]:
    """Return the largest ‖·‖₂ of a token's error (Wen et al. 2023, Definitions 5, 6): sampled, and maximised.

    The first is the largest on random sequences whose tokens have norm at most 1, in float64; the second the largest
    found by gradient ascent, never below. Both are lower bounds of the largest error over all inputs, the one in
    Theorem 3: ascent may end in a local maximum. The first coordinates of the large layers are those of the target;
    their other outputs must be zero. Cost: a forward pass of ``inputs`` sequences, and ``steps`` forward and backward
    passes of ``starts`` sequences.

    Args:
        target: The layers that are approximated.
        pruned: The layers that approximate them.
        inputs: Number of random sequences.
        starts: Number of sequences from which gradient ascent starts; half are the worst random sequences.
        steps: Number of steps of the ascent.
        length: Number of tokens in each; attention is causal, so shorter sequences are included.
    """
    pruned = [without_dead_units(layer) for layer in pruned]
    size = len(target[0][2])
    padding = (0, len(pruned[0][2]) - size)

    def errors(x: Float[Tensor, "batch n m"]) -> Float[Tensor, " batch"]:
        wrong = run_layers(pruned, pad(x, padding)) - pad(run_layers(target, x), padding)
        return torch.linalg.vector_norm(wrong, dim=-1).amax(1)

    generator = seeded(0)
    x = normalize(normals(generator, inputs, length, size), dim=-1)
    # Half of the sequences have tokens of norm 1, the others also shorter tokens.
    x[::2] *= uniforms(generator, len(x[::2]), length, 1)
    sampled = torch.cat([errors(part) for part in x.split(200)])
    worst_first = x[sampled.argsort(descending=True)]
    half = starts // 2
    first = torch.cat([worst_first[: starts - half], x[:half]])
    largest = float(sampled.max())
    return largest, max(largest, ascend(errors, first, steps))


def ascend(errors: Callable[[Tensor], Tensor], x: Float[Tensor, "start n m"], steps: int) -> float:
    """Return the largest token error that projected gradient ascent finds from some sequences.

    In the first half, steps become shorter and every step is taken, so that kinks of the ReLUs do not stop the search.
    In the second half, each sequence ascends from its worst input so far: a step is taken only if the error grows.
    After such a step the next step of the sequence is longer; otherwise it is shorter. A step follows each token's part
    of the gradient, and ends on the unit ball.
    """
    taken = steps - steps // 2
    worst, steepest, size = x, x, _LONGEST
    best = torch.full_like(x[:, 0, 0], -torch.inf)
    for step in range(steps + 1):
        error, pull, *_ = torch.func.vjp(errors, x)
        uphill = normalize(pull(torch.ones_like(error))[0], dim=-1, eps=1e-30)
        better = (error > best)[:, None, None]
        best = best.maximum(error)
        worst, steepest = torch.where(better, x, worst), torch.where(better, uphill, steepest)
        if step > taken:
            size = size * torch.where(better, 1.5, 0.5).double()
        if step < taken:
            x = x + _LONGEST * (_SHORTEST / _LONGEST) ** (step / taken) * uphill
        else:
            x = worst + size * steepest
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1.0)
    return float(best.max())


def prune_dyck(
    *,
    layers: int = 1,
    size: int = 4,
    width: int = 8,
    candidates: Sequence[int] = (4, 6, 8, 10, 12, 14, 16, 18),
    seeds: int = 3,
    inputs: int = 2000,
    starts: int = 32,
    steps: int = 200,
) -> pl.DataFrame:
    """Prune larger random transformers to a small target (Theorem 3), and to two targets that share a layer.

    Random transformers of growing width are pruned to the weights whose sums give those of the target. A second target,
    pruned from the same weights, agrees with the first on every weight of layer 0 (Corollary 3).

    Args:
        layers: Number of layers of the target, L; the random transformer has 4 L.
        size: Size of the target's embeddings, queries and keys, m.
        width: Width of the target's feed-forward block, w.
        candidates: Numbers of random products for each weight of the target; they set the random transformer's width.
        seeds: Number of random transformers for each number of candidates.
        inputs: Number of random inputs on which errors are measured.
        starts: Number of inputs where gradient ascent for larger errors starts; half are the worst random inputs.
        steps: Number of steps of the ascent.

    Returns:
        One row a number of candidates and a random transformer. ``sampled_error`` and ``error`` are those of
        `approximation_error`, ``other_sampled_error`` and ``other_error`` those of the second target; ``shared`` says
        that both prunings coincide on every weight of layer 0, ``apart`` how far the two functions lie apart at least.

    Examples:
        >>> import identilens as idl
        >>> pruned = idl.lab.prune_dyck(candidates=(4, 6), seeds=1, inputs=50, starts=2, steps=2)
        >>> pruned.select("candidates", "width", "shared").rows()
        [(4, 128, True), (6, 192, True)]
    """
    targets = [small_target(layers, size, width, seed) for seed in range(2)]
    measure = partial(approximation_error, inputs=inputs, starts=starts, steps=steps)
    rows = []
    for number, seed in product(candidates, range(seeds)):
        large = random_transformer(number, size, width, 4 * layers, seed)
        pruned = [prune_to(target, large, number) for target in targets]
        (sampled, error), (other_sampled, other_error) = map(measure, targets, pruned)
        weights = torch.cat([weight.flatten() for layer in pruned[0] for weight in layer])
        query, _, value, inner, *_ = large[0]
        rows.append(
            {
                "candidates": number,
                "seed": seed,
                "layers": len(large),
                "embedding": len(value),
                "key_size": len(query),
                "width": len(inner),
                "weights": len(weights),
                "kept": int(weights.count_nonzero()),
                "sampled_error": sampled,
                "error": error,
                "other_sampled_error": other_sampled,
                "other_error": other_error,
                "apart": measure(*targets)[1],
                "shared": all(map(torch.equal, pruned[0][0], pruned[1][0])),
            }
        )
    return pl.DataFrame(rows)
