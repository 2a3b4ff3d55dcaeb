"""Rank correlation, with a tolerance for ties, of two explanations or of one with what removing each part does."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite

TIE = 1e-6
"""Scores of a row are equal if they differ by at most this share of its largest: about eight roundings of float32."""


def rank_agreement(
    first: Float[Tensor, "*row part"],
    second: Float[Tensor, "*row part"],
    visible: Bool[Tensor, "*#row part"] | None = None,
    *,
    tie: float = TIE,
    floor: float = 0.0,
) -> Float[Tensor, "*row"]:
    """Return the rank correlation of two rows of scores over their visible parts, near scores being ties; in [−1, 1].

    The rank of a part is the number of parts below it less the number above it; two parts are tied if their scores
    differ by at most ``tie`` times the row's largest absolute score, in ``second`` also by at most ``floor``, the noise
    of effects. The result is the cosine of these ranks. It is Spearman's where ties are equal scores. With a tolerance
    it is not: a may tie with b and b with c, while a and c differ. Without any order NaN. O(n²) per row.

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
        raise InputError(
            f"expected scores of the same parts; got shapes {tuple(first.shape)}, {tuple(second.shape)}."
        )
    check_finite(first=first, second=second)
    seen = (
        torch.ones_like(first, dtype=torch.bool) if visible is None else visible.expand(first.shape)
    )
    a, b = _centred_ranks(first, seen, tie, 0.0), _centred_ranks(second, seen, tie, floor)
    size = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return torch.where(size > 0, (a * b).sum(-1) / size, torch.nan)


def _centred_ranks(scores: Tensor, seen: Tensor, tie: float, floor: float) -> Tensor:
    """Return ranks less their mean, 0 at hidden parts."""
    held = scores.detach().double().masked_fill(~seen, 0.0)
    equal = (held.abs().amax(-1) * tie).clamp_min(floor)[..., None, None]
    apart = held[..., :, None] - held[..., None, :]
    both = seen[..., :, None] & seen[..., None, :]
    # Parts below less parts above: twice the rank, centred.
    return (apart.sign() * (both & (apart.abs() > equal))).sum(-1)
