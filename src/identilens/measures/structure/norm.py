"""The structure-aware norm (structure2025, Eq. 5), and the norms with which it is compared."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError


class MatrixNorms(NamedTuple):
    """‖A‖_S = (1/n²) Σ w_ij |a_ij| (Eq. 5); the largest column and row sums of |a_ij|; the Frobenius norm."""

    structure: float
    column_sum: float
    infinity: float
    frobenius: float


def structure_norm(
    matrix: Float[Tensor, "*batch query key"], structure: Float[Tensor, "*#batch query key"]
) -> Float[Tensor, "*batch"]:
    """Return ‖A‖_S = (1/n²) Σ w_ij |a_ij| (structure2025, Eq. 5); n² is the number of entries.

    It is a norm on all matrices of W's shape, because every w_ij is positive. The W from Cut_l has zeros and gives only
    a seminorm; with `positive_structure` it gives a norm.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import structure_norm
        >>> matrix, structure = torch.tensor([[1.0, -2.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.1], [0.1, 1.0]])
        >>> structure_norm(matrix, structure)
        tensor(0.5500)

    Raises:
        InputError: For a W of another shape, or with entries that are not positive.
    """
    if structure.shape[-2:] != matrix.shape[-2:] or not (structure > 0).all():
        raise InputError(
            f"expected W of the matrix's shape {tuple(matrix.shape[-2:])}, every entry above 0; got "
            f"{tuple(structure.shape)}. Pass positive_structure(W)."
        )
    return (structure * matrix.abs()).mean((-2, -1))


def matrix_norms(
    matrix: Float[Tensor, "query key"], structure: Float[Tensor, "query key"]
) -> MatrixNorms:
    """Return the structure-aware norm beside the 1-, ∞- and Frobenius norms (structure2025, III).

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import matrix_norms
        >>> matrix, structure = torch.tensor([[1.0, -2.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.1], [0.1, 1.0]])
        >>> matrix_norms(matrix, structure)
        MatrixNorms(structure=0.5500000007450581, column_sum=3.0, infinity=3.0, frobenius=2.449489742783178)
    """
    sizes = matrix.double().abs()
    norm = structure_norm(sizes, structure.double())
    return MatrixNorms(
        *map(float, (norm, sizes.sum(0).max(), sizes.sum(1).max(), sizes.square().sum().sqrt()))
    )


def positive_structure(
    structure: Float[Tensor, "*batch query key"], floor: float = 1e-3
) -> Float[Tensor, "*batch query key"]:
    """Return W with every entry at least ``floor``, in (0, 1], times the largest entry, so that Eq. 5 is a norm.

    A matrix of zeros becomes a matrix of ones.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import positive_structure
        >>> positive_structure(torch.tensor([[0.9, 0.0], [0.1, 1.0]]), floor=0.01)
        tensor([[0.9000, 0.0100],
                [0.1000, 1.0000]])
    """
    top = structure.amax((-2, -1), keepdim=True)
    return torch.where(top > 0, torch.maximum(structure, floor * top), 1.0)
