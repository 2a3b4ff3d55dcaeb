"""Pruned random transformers: how close they come to a small target (Theorem 3), and the pair of Corollary 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, pad

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.lab.dyck.plain import PlainLayer, run_layers, small_target, without_dead_units
from identilens.lab.dyck.pruning import Sizes, prune_to, random_transformer
from identilens.lab.dyck.settings import PruneSettings
from identilens.runs.provenance import Identity
from identilens.runs.result import Finding, Result
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import counted, decimals, integers, table_of

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
    size = len(target[0].value)
    padding = (0, len(pruned[0].value) - size)

    def errors(x: Float[Tensor, "batch n m"]) -> Float[Tensor, "batch n"]:
        expected = pad(run_layers(target, x), padding)
        return torch.linalg.vector_norm(run_layers(pruned, pad(x, padding)) - expected, dim=-1)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(inputs, length, size, dtype=torch.float64, generator=generator)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # Half of the sequences have tokens of norm 1, the others also shorter tokens.
    x[::2] *= torch.rand(len(x[::2]), length, 1, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        sampled = torch.cat([errors(part) for part in x.split(200)]).amax(1)
    worst_first = x[sampled.argsort(descending=True)]
    worst = -(-starts // 2)
    first = torch.cat([worst_first[:worst], x[: starts - worst]])
    largest = float(sampled.max())
    return largest, max(largest, ascend(errors, first, steps))


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
    moved = x + size * normalize(gradient, dim=-1, eps=1e-30)
    return moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True).clamp_min(1.0)


def _slope(
    errors: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Float[Tensor, " start"], Float[Tensor, "start n m"]]:
    """Return each sequence's largest token error and its gradient."""
    x = x.detach().requires_grad_()
    largest = errors(x).amax(1)
    (gradient,) = torch.autograd.grad(largest.sum(), x)
    return largest.detach(), gradient


_FINDING = """\
With {candidates} random products for each weight (width {width}) the pruned transformer is at most {sampled:.2g} \
from its target on {inputs:,} random inputs, over {count:random transformer}; with {candidates_first} (width \
{width_first}) {sampled_first:.2g}.
Gradient ascent in the unit ball finds inputs where it is {largest:.2g} away, and {largest_first:.2g}; the largest \
error over all inputs is at least that.
In {shared} of {pairs} pairs the prunings for two targets agree on every weight of layer 0, while the \
targets lie at least {apart:.2g} apart: the weights of one layer alone do not tell what a transformer computes.
"""
_TILES = """\
{largest:.2g} | largest error found at width {width}, a lower bound
{shared} of {pairs} | pairs with every weight of one layer in common
"""


@dataclass(frozen=True, kw_only=True)
class Prunings(Result):
    """Pruned random transformers (Wen et al. 2023, Theorem 3 and Corollary 3).

    Attributes:
        table: One row a number of candidates and a random transformer. ``sampled_error`` is the largest error of a
            token over random inputs, ``error`` the largest that gradient ascent found: both are lower bounds of
            the largest over all inputs. ``other_sampled_error`` and ``other_error`` are those of a second target
            pruned from the same random weights; ``shared`` says that both prunings coincide on every weight of
            layer 0, ``apart`` how far the two functions lie apart at least (by ascent).

    Examples:
        >>> import identilens as idl
        >>> pruned = idl.lab.prune_dyck(candidates=(4, 6), seeds=1, inputs=50, starts=2, steps=2)
        >>> pruned.by_width().columns
        ['width', 'candidates', 'mean', 'largest', 'sampled', 'count']
    """

    analysis: ClassVar = "lab dyck prune"
    title: ClassVar = "Pruned random transformers"
    schema: ClassVar = {
        "table": {
            **integers(
                "candidates", "seed", "layers", "embedding", "key_size", "width", "weights", "kept"
            ),
            **decimals("sampled_error", "error", "other_sampled_error", "other_error", "apart"),
            "shared": pl.Boolean,
        }
    }
    keys: ClassVar = {"table": ("candidates", "seed")}
    words: ClassVar = {
        "width": "Width of the random feed-forward block",
        "value": "Largest error of a token",
        "largest": "Largest by ascent",
        "mean": "Mean by ascent",
        "sampled": "Largest over random inputs",
        "measure": "Error",
    }
    views: ClassVar = {
        "error_by_width": View(
            lines,
            ("width", ("largest", "mean", "sampled"), "measure"),
            title="Largest error of a token by width",
            table="by_width",
            look={"log_y": True},
            listed=True,
        ),
        "prunings": View(title="Pruned random transformers", listed=True),
    }

    def subject(self) -> str:
        """Return the target."""
        settings = self.provenance["settings"]
        return (
            f"A target of {counted(settings['layers'], 'layer')}, embedding size {settings['size']}, feed-forward "
            f"width {settings['width']}, inside random transformers four times as deep"
        )

    def summary(self) -> Finding:
        """Return errors at the widest and the narrowest, and how many pairs share a layer."""
        ends, settings = self.by_width(), self.provenance["settings"]
        narrowest = {f"{name}_first": value for name, value in ends.row(0, named=True).items()}
        return Finding.of(
            _FINDING,
            _TILES,
            **narrowest,
            **ends.row(-1, named=True),
            inputs=settings["inputs"],
            shared=self.table["shared"].sum(),
            pairs=len(self.table),
            apart=self.table["apart"].min(),
        )

    def by_width(self) -> pl.DataFrame:
        """Return mean and largest error of each width, the narrowest first, and the largest over random inputs."""
        error, sampled = pl.col("error"), pl.col("sampled_error").max()
        groups = self.table.group_by("width", "candidates")
        return groups.agg(
            mean=error.mean(), largest=error.max(), sampled=sampled, count=pl.len()
        ).sort("width")


class DyckPruneStudy(Study[PruneSettings, Prunings]):
    """Prune larger random transformers to a small target (Theorem 3), and to two targets that share a layer.

    Random transformers of growing width are pruned to the weights whose sums give those of the target. The error is
    the largest over tokens: of random inputs, and of inputs that gradient ascent finds in the unit ball. It is a lower
    bound of the largest error of all. A second target, pruned from the same weights, agrees with the first on every
    weight of one layer (Corollary 3).

    Raises:
        InputError: For settings that cannot be used.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> pruned = idl.lab.prune_dyck(candidates=(4, 6), seeds=1, inputs=50, starts=2, steps=2)
        >>> pruned
        Prunings: With 6 random products for each weight ...
    """

    name = "lab dyck prune"
    unit = "transformers"
    takes = ()
    settings_type = PruneSettings
    result_type = Prunings

    def __init__(self, settings: PruneSettings) -> None:
        super().__init__(settings)
        self.parts = [
            (candidates, seed)
            for candidates in settings.candidates
            for seed in range(settings.seeds)
        ]
        sizes = (settings.layers, settings.size, settings.width)
        self.targets = [small_target(*sizes, seed) for seed in range(2)]

    def identity(self) -> Identity:
        """Return the random transformers."""
        name = f"random transformers of {4 * self.settings.layers} layers"
        texts = [f"{candidates} {seed}" for candidates, seed in self.parts]
        return Identity({"name": name}, texts)

    def run(self, part: int) -> Output:
        """Return the row of one random transformer."""
        settings, (candidates, seed) = self.settings, self.parts[part]
        sizes = Sizes(candidates, settings.size, settings.width)
        large = random_transformer(sizes, 4 * settings.layers, seed)
        pruned = [prune_to(target, large, sizes) for target in self.targets]
        functions = [*zip(self.targets, pruned, strict=True), self.targets]
        search = {"inputs": settings.inputs, "starts": settings.starts, "steps": settings.steps}
        error, other, apart = (
            approximation_error(first, second, **search) for first, second in functions
        )
        kept = [weight.count_nonzero() for layer in pruned[0] for weight in layer.matrices]
        shared = zip(pruned[0][0].matrices, pruned[1][0].matrices, strict=True)
        row = {
            "candidates": candidates,
            "seed": seed,
            "layers": len(large),
            "embedding": sizes.embedding,
            "key_size": sizes.key_size,
            "width": sizes.projection,
            "weights": sum(weight.numel() for layer in large for weight in layer.matrices),
            "kept": int(sum(kept)),
            "sampled_error": error[0],
            "error": error[1],
            "other_sampled_error": other[0],
            "other_error": other[1],
            "apart": apart[1],
            "shared": all(torch.equal(first, second) for first, second in shared),
        }
        return Output({"table": table_of(Prunings.schema["table"], [row])})


prune_dyck = study_function(DyckPruneStudy, "prune_dyck")
