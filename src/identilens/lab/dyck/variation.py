"""Distance of attention patterns of different seeds (Wen et al. 2023, section 4.1)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Variation:
    """Mean squared distance of attention patterns over pairs of seeds.

    Attributes:
        value: Mean of ‖A₁ − A₂‖²_F over all pairs.
        error: Its standard error over seeds, by the jackknife (pairs that share a seed are not independent); NaN
            for two patterns.
        seeds: Number of patterns.
        size: Number of rows and columns.
    """

    value: float
    error: float
    seeds: int
    size: int


def attention_variation(
    patterns: Float[Tensor, "seed n n"], *, with_start: bool = False
) -> Variation:
    """Return the attention variation, the mean of ‖A₁ − A₂‖²_F over pairs of seeds.

    Two conventions change the number by much, and the paper states neither. The patterns here are causal, as the models
    compute them: entries above the diagonal are zero. The first row and column belong to the start token; they are left
    out by default, and the remaining rows are not scaled to sum to one.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck.variation import attention_variation
        >>> patterns = torch.stack([torch.eye(4), torch.full((4, 4), 0.25), torch.eye(4).flip(0)])
        >>> round(attention_variation(patterns).value, 3)
        2.875
    """
    compared = (patterns if with_start else patterns[:, 1:, 1:]).double().flatten(1)
    seeds, size = len(compared), patterns.shape[-1] - (0 if with_start else 1)
    squares = torch.cdist(compared, compared).square()
    total = float(squares.sum())
    # With two patterns the jackknife is not defined: 0/0.
    left_out = (
        (total - 2 * squares.sum(1)) / ((seeds - 1) * (seeds - 2))
        if seeds > 2
        else torch.tensor([torch.nan])
    )
    error = float(((seeds - 1) / seeds * (left_out - left_out.mean()).square().sum()).sqrt())
    return Variation(total / (seeds * (seeds - 1)), error, seeds, size)


@dataclass(frozen=True)
class Baseline:
    """Attention variation of random patterns.

    Attributes:
        name: How rows are drawn.
        causal: Whether row i (from 1) is over i tokens; otherwise every row is over all tokens.
        value: Expected ‖A₁ − A₂‖²_F of two independent patterns.
        error: Standard error of a simulation; 0 if the value is exact.
    """

    name: str
    causal: bool
    value: float
    error: float


def random_baselines(
    size: int, *, with_start: bool = False, draws: int = 4000, seed: int = 0
) -> list[Baseline]:
    """Return the variation of random patterns: rows uniform on the simplex, and softmax of standard normal logits.

    The patterns have ``size`` rows, the start token's included, and are treated as in `attention_variation`: by default
    the start token's row and column are left out, and the rest is not scaled. Two rows uniform on the simplex of m
    entries (Dirichlet(1)) have the expected squared distance 2 (1 − 1/m)/(m + 1), exactly; without one of the entries
    2 (1 − 1/m)²/(m + 1). The softmax is simulated with ``draws`` pairs of patterns.

    Examples:
        >>> from identilens.lab.dyck import random_baselines
        >>> [round(one.value, 1) for one in random_baselines(9, draws=500)]
        [1.3, 1.4, 1.5, 1.6]
        >>> [round(one.value, 1) for one in random_baselines(8, with_start=True, draws=500)]
        [1.6, 1.7, 1.9, 1.8]
    """
    baselines = []
    generator = torch.Generator().manual_seed(seed)
    left_out = 0 if with_start else 1
    for causal in (False, True):
        entries = (torch.arange(1, size + 1) if causal else torch.full((size,), size))[
            left_out:
        ].double()
        exact = float((2 * (1 - 1 / entries) ** (1 + left_out) / (entries + 1)).sum())
        baselines.append(Baseline("even on the simplex", causal, exact, 0.0))
        logits = torch.randn(2, draws, size, size, generator=generator)
        if causal:
            logits = logits.masked_fill(
                ~torch.ones(size, size, dtype=torch.bool).tril(), -torch.inf
            )
        one, other = torch.softmax(logits, -1)[..., left_out:, left_out:]
        distances = (one - other).square().sum((1, 2)).double()
        error = float(distances.std() / draws**0.5)
        baselines.append(Baseline("softmax of normals", causal, float(distances.mean()), error))
    return baselines
