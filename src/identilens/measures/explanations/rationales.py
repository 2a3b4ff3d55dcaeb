"""Comprehensiveness and sufficiency of the tokens that an explanation puts first (DeYoung et al. 2020, ERASER)."""

from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of the tokens in ERASER's area over the perturbation curve."""


def comprehensiveness(
    whole: Float[Tensor, "*#text"], without: Float[Tensor, "*text share"]
) -> Float[Tensor, "*text"]:
    """Return the mean of p(x) − p(x without its first k % tokens) over the shares k (DeYoung et al. 2020, 4.2, AOPC).

    p is the probability of the class that the model predicts for the whole text. In [−1, 1]; large if the tokens are
    needed.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import comprehensiveness
        >>> comprehensiveness(torch.tensor(0.9), torch.tensor([0.8, 0.4]))
        tensor(0.3000)

    Raises:
        InputError: If no share is given.
    """
    return _mean_drop(whole, without)


def sufficiency(
    whole: Float[Tensor, "*#text"], only: Float[Tensor, "*text share"]
) -> Float[Tensor, "*text"]:
    """Return the mean of p(x) − p(only the first k % tokens of x) over the shares k (DeYoung et al. 2020, 4.2, AOPC).

    In [−1, 1]; small, or negative, if the tokens are enough.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import sufficiency
        >>> sufficiency(torch.tensor(0.9), torch.tensor([0.5, 0.9]))
        tensor(0.2000)

    Raises:
        InputError: If no share is given.
    """
    return _mean_drop(whole, only)


def _mean_drop(whole: Tensor, changed: Tensor) -> Tensor:
    if not changed.shape[-1]:
        raise InputError("expected at least one share of tokens; got none.")
    return (whole[..., None] - changed).mean(-1)
