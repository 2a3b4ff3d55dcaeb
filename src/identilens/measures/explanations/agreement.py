"""Rank agreement of explanations, their test against random orders, and intervals of a mean over texts."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from scipy.stats import t as student
from torch import Tensor

from identilens.linalg.checks import check_finite

TIE = 1e-6
"""Scores of a row are equal if they differ by at most this share of its largest: about eight roundings of float32."""


def rank_agreement(
    first: Float[Tensor, "*row part"],
    second: Float[Tensor, "*row part"],
    visible: Bool[Tensor, "*#row part"] | None = None,
    *,
    floor: float = 0.0,
) -> Float[Tensor, "*row"]:
    """Return the rank correlation of two rows of scores over their visible parts, near scores being ties; in [−1, 1].

    The rank of a part is the number of parts below it less the number above it; two parts are tied if their scores
    differ by at most 1e-6 times the row's largest absolute score, in ``second`` also by at most ``floor``, the noise
    of effects. The result is the cosine of these ranks. It is Spearman's where ties are equal scores. With a tolerance
    it is not: a may tie with b and b with c, while a and c differ. Without any order NaN. O(n²) per row.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import rank_agreement
        >>> rank_agreement(torch.tensor([0.1, 0.2, 0.7]), torch.tensor([1.0, 3.0, 2.0]))
        tensor(0.5000, dtype=torch.float64)

    Raises:
        NumericalError: NaN or infinity.
    """
    check_finite(first=first, second=second)
    mask = (
        torch.ones_like(first, dtype=torch.bool) if visible is None else visible.expand(first.shape)
    )
    a, b = _centred_ranks(first, mask, 0.0), _centred_ranks(second, mask, floor)
    size = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return torch.where(size > 0, (a * b).sum(-1) / size, torch.nan)


def _centred_ranks(scores: Tensor, mask: Tensor, floor: float) -> Tensor:
    """Return ranks less their mean, 0 at hidden parts."""
    held = scores.detach().double().masked_fill(~mask, 0.0)
    equal = (held.abs().amax(-1) * TIE).clamp_min(floor)[..., None, None]
    apart = held[..., :, None] - held[..., None, :]
    both = mask[..., :, None] & mask[..., None, :]
    # Parts below less parts above: twice the rank, centred.
    return (apart.sign() * (both & (apart.abs() > equal))).sum(-1)


def permutation_p(
    value: Float[Tensor, "*order"], random: Float[Tensor, " draw"]
) -> Float[Tensor, "*order"]:
    """Return the p value of an order's score against those of random orders of the same parts; in (0, 1].

    p = (1 + #{random ≥ value}) / (1 + draws), the permutation test by random draws (Phipson & Smyth 2010): 19 draws
    can give 0.05. Large scores are good.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import permutation_p
        >>> permutation_p(torch.tensor([0.9, 0.2]), torch.tensor([0.1, 0.2, 0.3]))
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    return (1 + (random >= value[..., None]).double().sum(-1)) / (1 + len(random))


LEAST_TEXTS = 8
"""With fewer texts, resamples too often repeat one text; the interval is Student's."""

MOST_TEXTS = 4000
"""With more texts, resamples would take gigabytes, and their mean is normal; the interval is Student's."""

_SPREAD = 1e-3
"""A resample whose standard deviation is below this share of the texts' own has no scale."""


@dataclass(frozen=True)
class Interval:
    """A mean with its interval; NaN at both ends if there is none."""

    mean: float
    low: float
    high: float


def bootstrap_interval(values: Float[Tensor, " text"], *, draws: int = 2000) -> Interval:
    """Return the mean of one value per text and its 95 % bootstrap-t interval (Efron 1981; Hall 1988).

    Quantiles of (mean* − mean) / (s* / √n), over ``draws`` resamples of the texts, take the place of Student's. With
    fewer than `LEAST_TEXTS` or more than `MOST_TEXTS` texts, or a resample of nearly equal values, they are Student's
    own. One text has no interval: NaN. How often such intervals cover the mean: docs/faithfulness.md. Texts are the
    unit: rows and heads of one text are not independent, so average them first. For the difference of two explanations
    pass the differences text by text. O(draws · texts).

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations.agreement import bootstrap_interval
        >>> found = bootstrap_interval(torch.arange(10.0))
        >>> found.mean, found.low < 4.5 < found.high
        (4.5, True)

    Raises:
        NumericalError: NaN or infinity.
    """
    check_finite(values=values)
    held = values.detach().double().cpu()
    mean, texts = float(held.mean()), len(held)
    if texts == 1:
        return Interval(mean, float("nan"), float("nan"))
    error = float(held.std()) / texts**0.5
    lower, upper = _quantiles(held, draws)
    return Interval(mean, mean - upper * error, mean - lower * error)


def _quantiles(held: Float[Tensor, " text"], draws: int) -> tuple[float, float]:
    """Return the quantiles of the studentised mean: by resampling where that can be done, else Student's."""
    texts, spread = len(held), held.std()
    if LEAST_TEXTS <= texts <= MOST_TEXTS and spread > 0:
        generator = torch.Generator().manual_seed(0)
        drawn = held[torch.randint(texts, (draws, texts), generator=generator)]
        spreads = drawn.std(1)
        if (spreads > _SPREAD * spread).all():
            ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
            low, high = (
                ((drawn.mean(1) - held.mean()) / (spreads / texts**0.5)).quantile(ends).tolist()
            )
            return low, high
    high = float(student.ppf(0.975, texts - 1))
    return -high, high
