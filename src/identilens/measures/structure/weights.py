"""The structure W of a head (structure2025, Eq. 7 and 8): attention summed, cut and normalised."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.measures.structure.norm import check_structure

Maps = Float[Tensor, "*batch query key"]
"""A number of each key in each row of each map."""

Scale = Literal["mean", "sum"]
Penalty = float | Callable[[Tensor], Tensor]
"""h of Eq. 8: a share in [0, 1) of the entry, or a function."""


def cut(summed: Maps, threshold: float, penalty: Penalty = 0.0) -> Maps:
    """Return Cut_l (Eq. 8): entries of at least l, in units of ``summed``, stay; a smaller entry x becomes h(x).

    A share c in [0, 1) gives h(x) = c x (0 is the draft's choice); a function must have 0 <= h(x) < x. At x = 0 the
    draft's condition cannot hold; there h must be 0.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import cut
        >>> cut(torch.tensor([[0.1, 0.6], [0.5, 0.2]]), 0.5)
        tensor([[0.0000, 0.6000],
                [0.5000, 0.0000]])

    Raises:
        InputError: For a threshold below 0, negative entries, or a penalty that does not penalise.
    """
    if not threshold >= 0:
        raise InputError(f"the threshold l must be 0 or more; got {threshold}.")
    check_weights(summed, "what is cut")
    if callable(penalty):
        low = penalty(summed)
        fits = (low >= 0) & ((low < summed) | ((summed == 0) & (low == 0)))
        if not bool((fits | (summed >= threshold)).all()):
            raise InputError(
                "the penalty h must give 0 <= h(x) < x for every x below the threshold (Eq. 8)."
            )
    else:
        if not 0 <= penalty < 1:
            raise InputError(
                f"the penalty must be a share in [0, 1), or a function; got {penalty}."
            )
        low = penalty * summed
    return torch.where(summed >= threshold, summed, low)


def normalise_rows(matrix: Maps) -> Maps:
    """Return the matrix with every row scaled to sum to 1; rows of zeros stay zero.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure.weights import normalise_rows
        >>> normalise_rows(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        tensor([[0.2500, 0.7500],
                [0.0000, 0.0000]])
    """
    total = matrix.sum(-1, keepdim=True)
    return torch.where(total > 0, matrix / torch.where(total > 0, total, 1.0), 0.0)


def structure_weights(
    mean: Maps,
    threshold: float,
    *,
    texts: int = 1,
    scale: Scale = "mean",
    penalty: Penalty = 0.0,
) -> Maps:
    """Return W = Norm(Cut_l(Ã)), the structure of a head (structure2025, III.B.1).

    The draft cuts the sum Ã over n texts. Its entries grow with n, so an l is valid for one n only. Cutting the mean
    Ã/n at l is the same as cutting the sum at n·l, and gives the same W. ``scale`` is the unit of l: in [0, 1] for the
    mean, in [0, n] for the sum, with n = ``texts``. For ``penalty`` see `cut`.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import structure_weights
        >>> structure_weights(torch.tensor([[0.1, 0.6], [0.5, 0.5]]), 0.5)
        tensor([[0.0000, 1.0000],
                [0.5000, 0.5000]])

    Raises:
        InputError: For a threshold outside its range, negative entries, or a penalty that does not penalise.
    """
    check_threshold(threshold, texts, scale)
    return normalise_rows(cut(mean, threshold / texts if scale == "sum" else threshold, penalty))


def check_threshold(threshold: float, texts: int, scale: Scale) -> None:
    """Raise unless a threshold is between 0 and the largest possible weight."""
    if scale not in ("mean", "sum"):
        raise InputError(f"scale must be mean or sum; got {scale!r}.")
    limit = texts if scale == "sum" else 1
    if not 0 <= threshold <= limit:
        raise InputError(
            f"the threshold l of the {scale} of {texts} texts' weights lies in [0, {limit}]; got {threshold}. "
            f"{'Pass scale=sum (--scale sum) to cut the sum.' if scale == 'mean' else 'No weight is above it.'}"
        )


def check_weights(weights: Tensor, name: str) -> None:
    """Raise for weights that are negative, NaN or infinite, or not a matrix."""
    if bool((weights < 0).any()):
        raise InputError(
            f"{name} have negative entries (least {float(weights.min()):.3g}); a structure is made of attention "
            "weights of 0 or more. Use the absolute values (weights.abs()) of effective or efficient attention."
        )
    check_structure(weights)
