"""Decompositions: singular values on the processor, eigenvalues on the tensors' device where they converge there."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from identilens.errors import NumericalError

R = TypeVar("R")
LinAlgError = torch.linalg.LinAlgError  # pyright: ignore[reportPrivateImportUsage]
Svd = tuple[Tensor, Tensor, Tensor]


def svd(matrix: Float[Tensor, "*batch n m"], full_matrices: bool = False) -> Svd:
    """Return U, σ and Vᵀ with U diag(σ) Vᵀ = matrix, computed on the processor: a GPU takes one matrix at a time.

    Raises:
        NumericalError: If the decomposition does not converge.
    """
    return _on_processor(lambda copy: tuple(torch.linalg.svd(copy, full_matrices)), matrix)


def singular_values(matrix: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch least"]:
    """Return the singular values in descending order.

    Raises:
        NumericalError: As `svd`.
    """
    return _on_processor(torch.linalg.svdvals, matrix)


def eigh(matrix: Float[Tensor, "*batch n n"]) -> tuple[Tensor, Tensor]:
    """Return eigenvalues in ascending order, and eigenvectors, of symmetric matrices.

    Raises:
        NumericalError: As `svd`.
    """
    try:
        return tuple(torch.linalg.eigh(matrix))
    except LinAlgError:
        pass
    return _on_processor(lambda copy: tuple(torch.linalg.eigh(copy)), matrix)


def _on_processor(decompose: Callable[[Tensor], R], matrix: Tensor) -> R:
    try:
        result: Any = decompose(matrix.cpu())
    except LinAlgError as error:
        raise NumericalError(
            f"a decomposition of {tuple(matrix.shape)} numbers does not converge ({error}). Look for NaN or infinite "
            "values in the model or the input."
        ) from error
    return tree_map(lambda part: part.to(matrix.device), result)
