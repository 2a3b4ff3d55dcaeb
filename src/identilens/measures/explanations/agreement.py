"""Rank correlation of two explanations, or of an explanation with what removing each part does."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite

TIE = 1e-6
"""Scores are rounded to multiples of this share of the row's largest, so that rounding of floats makes few orders."""


def rank_agreement(
    first: Float[Tensor, "*row part"], second: Float[Tensor, "*row part"],
    visible: Bool[Tensor, "*#row part"] | None = None, *, tie: float = TIE,
) -> Float[Tensor, "*row"]:  # fmt: skip
    """Return Spearman's rank correlation of two rows of scores over their visible parts, in [−1, 1].

    Equal scores share the mean of their ranks. Scores are first rounded to multiples of ``tie`` times the largest
    absolute score of their row. A row of equal scores has no order: NaN. O(n²) per row.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import rank_agreement
        >>> rank_agreement(torch.tensor([0.1, 0.2, 0.7]), torch.tensor([1.0, 3.0, 2.0]))
        tensor(0.5000, dtype=torch.float64)

    Raises:
        InputError: Rows of different shapes.
        NumericalError: NaN or infinity.
    """
    if first.shape != second.shape:
        raise InputError(f"expected scores of the same parts; got shapes {tuple(first.shape)}, {tuple(second.shape)}.")
    check_finite(first=first, second=second)
    seen = torch.ones_like(first, dtype=torch.bool) if visible is None else visible.expand(first.shape)
    a, b = (_centred_ranks(one, seen, tie) for one in (first, second))
    size = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return torch.where(size > 0, (a * b).sum(-1) / size, torch.nan)


def in_steps(scores: Float[Tensor, "*row part"], tie: float = TIE) -> Float[Tensor, "*row part"]:
    """Return scores in whole steps of ``tie`` times the largest absolute score of their row."""
    unit = scores.abs().amax(-1, keepdim=True) * tie
    return torch.where(unit > 0, scores / torch.where(unit > 0, unit, 1.0), 0.0).round()


def _centred_ranks(scores: Tensor, seen: Tensor, tie: float) -> Tensor:
    """Return ranks less their mean, 0 at hidden parts."""
    steps = in_steps(scores.detach().double().masked_fill(~seen, 0.0), tie)
    both = seen[..., :, None] & seen[..., None, :]
    apart = (steps[..., :, None] - steps[..., None, :]).sign() * both
    # Parts below less parts above: twice the rank, centred.
    return apart.sum(-1)
