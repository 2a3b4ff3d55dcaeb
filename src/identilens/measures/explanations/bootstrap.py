"""Bootstrap intervals over texts."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: Float[Tensor, " text"], *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Return the mean of one value per text and its percentile bootstrap interval (Efron 1979).

    Texts are drawn with replacement, ``draws`` times; the ends are quantiles of the means. Texts are the unit: rows and
    heads of one text are not independent, so average them first. For the difference of two explanations pass the
    differences text by text. O(draws · texts).

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import bootstrap_interval
        >>> found = bootstrap_interval(torch.arange(10.0))
        >>> found.mean, found.low < 4.5 < found.high
        (4.5, True)

    Raises:
        InputError: No texts, or a level outside (0, 1).
        NumericalError: NaN or infinity.
    """
    if not len(values) or not 0 < level < 1:
        raise InputError(f"expected at least one text and a level in (0, 1); got {len(values)} texts, level {level}.")
    check_finite(values=values)
    held = values.detach().double().cpu()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(held), (draws, len(held)), generator=generator)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = held[drawn].mean(1).quantile(ends).tolist()
    return Interval(float(held.mean()), low, high)
