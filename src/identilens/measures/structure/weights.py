"""The structure W of a head (structure2025, Eq. 7 and 8): attention summed, cut and normalised."""

import torch
from jaxtyping import Float
from torch import Tensor

Maps = Float[Tensor, "*batch query key"]
"""A number of each key in each row of each map."""


def cut(summed: Maps, threshold: float) -> Maps:
    """Return Cut_l (Eq. 8): entries of at least l, in units of ``summed``, stay; smaller ones become 0 (h = 0).

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import cut
        >>> cut(torch.tensor([[0.1, 0.6], [0.5, 0.2]]), 0.5)
        tensor([[0.0000, 0.6000],
                [0.5000, 0.0000]])
    """
    return torch.where(summed >= threshold, summed, 0.0)


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


def structure_weights(mean: Maps, threshold: float) -> Maps:
    """Return W = Norm(Cut_l(Ã)), the structure of a head (structure2025, III.B.1); l is in [0, 1].

    The draft cuts the sum Ã over n texts. Its entries grow with n, so an l is valid for one n only. Cutting the mean
    Ã/n at l is the same as cutting the sum at n·l, and gives the same W.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import structure_weights
        >>> structure_weights(torch.tensor([[0.1, 0.6], [0.5, 0.5]]), 0.5)
        tensor([[0.0000, 1.0000],
                [0.5000, 0.5000]])
    """
    return normalise_rows(cut(mean, threshold))
