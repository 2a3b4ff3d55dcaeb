"""The alternatives of a row on the simplex: their space, the largest step in a direction, and their distance."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.measures.attention.checks import check_precision


def simplex_space(
    projected_values: HeadValues, visible: Bool[Tensor, " key"] | None = None
) -> SimplexSpace:
    """Return LN([T, 1]) of one row and its complement, which must not change; see `ProjectedValues.simplex_space`.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import simplex_space
        >>> T, row = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([0.1, 0.1, 0.8])
        >>> space = simplex_space(T)
        >>> space.rank, space.nullity
        (2, 1)

    Raises:
        InputError: Values that are not finite, or no visible key.
    """
    return head_values(projected_values).simplex_space(visible)


def largest_step(
    weights: Float[Tensor, "*rows key"], direction: Float[Tensor, "*rows key"]
) -> Float[Tensor, "*rows"]:
    """Return λ_max, the largest step of each row along its direction before a weight becomes negative.

    λ_max = min over ã_i < 0 of −a_i / ã_i (Brunner et al. 2020, 3.3). Zero for a zero direction, infinite
    for one without negative entries (never the case in LN([T, 1])). On a one-hot row λ_max is zero
    unless the direction's only negative entry is at the hot key.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention.simplex import largest_step
        >>> largest_step(torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([[-1.0, 0.5, 0.5]]))
        tensor([0.2000])

    Raises:
        InputError: Weights in half precision, or without a key.
    """
    check_precision(weights)
    if not weights.shape[-1]:
        raise InputError("expected weights over at least one key; got none; leave empty texts out.")
    negative = direction < 0
    ratio = torch.where(negative, -weights / torch.where(negative, direction, -1.0), torch.inf)
    return torch.where((direction == 0).all(-1), 0.0, ratio.amin(-1))


def total_variation(
    weights: Float[Tensor, "*#rows key"], alternative: Float[Tensor, "*#rows key"]
) -> Float[Tensor, "*broadcast"]:
    """Return ½ Σ |a'_j − a_j| for each row, in [0, 1].

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import total_variation
        >>> total_variation(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.5, 0.0, 0.5]))
        tensor(0.5000)

    Raises:
        InputError: Weights in half precision.
    """
    check_precision(weights)
    check_precision(alternative)
    return (alternative - weights).abs().sum(-1) / 2
