"""Perturbations that keep a head's structure, and perturbations that break it (structure2025, III and III.A)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.structure.weights import normalise_rows

Map = Float[Tensor, "query key"]
"""A number of each key in each row."""

Perturbation = Literal["aware", "breaking", "random"]


def perturbation_directions(weights: Map, structure: Map, seed: int = 0) -> dict[Perturbation, Map]:
    """Return one direction of each kind. The weights plus any share of a direction up to 1 are distributions.

    ``aware`` keeps the weights of a row where W is positive, and distributes the rest of its mass again, at random,
    over the keys where W is zero. ``breaking`` moves all mass from the keys where W is positive to the other keys, at
    random. ``random`` distributes all mass of a row again over all keys. If W is positive everywhere or nowhere in a
    row, the row is split at the median of W instead, so that every row has both kinds of keys.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import perturbation_directions
        >>> weights = torch.softmax(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), -1)
        >>> directions = perturbation_directions(weights, torch.eye(4))
        >>> sorted(directions), [bool((weights + one).min() > -1e-6) for one in directions.values()]
        (['aware', 'breaking', 'random'], [True, True, True])
    """
    A, support = weights.double(), _support(structure)
    generator = torch.Generator().manual_seed(seed)

    def shares(allowed: Tensor) -> Tensor:
        # Exponential random numbers divided by their sum are uniform on the simplex.
        drawn = (
            torch.empty(A.shape, dtype=torch.float64).exponential_(generator=generator).to(A.device)
        )
        return normalise_rows(drawn * allowed)

    inside, outside = A * support, A * ~support
    return {
        "aware": outside.sum(-1, keepdim=True) * shares(~support) - outside,
        "breaking": inside.sum(-1, keepdim=True) * shares(~support) - inside,
        "random": A.sum(-1, keepdim=True) * shares(torch.ones_like(support)) - A,
    }


def perturbed(weights: Map, direction: Map, size: float) -> Map:
    """Return weights moved along one of `perturbation_directions` to a change of the given Frobenius norm.

    It is at most the direction's own: beyond it weights would turn negative.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import perturbation_directions, perturbed
        >>> weights = torch.softmax(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), -1)
        >>> direction = perturbation_directions(weights, torch.eye(4))["random"]
        >>> moved = perturbed(weights, direction, 0.01)
        >>> round(float(torch.linalg.matrix_norm(moved - weights)), 4)
        0.01
    """
    reach = float(torch.linalg.matrix_norm(direction))
    return (weights.double() + direction * (size / reach if reach else 0.0)).clamp_min(0.0)


def _support(structure: Tensor) -> Tensor:
    support = structure > 0
    half = structure > structure.median(-1, keepdim=True).values
    first = (
        torch.arange(structure.shape[-1], device=structure.device) < (structure.shape[-1] + 1) // 2
    )
    half = torch.where((half.any(-1) & ~half.all(-1))[..., None], half, first)
    split = support.all(-1) | ~support.any(-1)
    return torch.where(split[..., None], half, support)
