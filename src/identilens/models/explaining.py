"""Errors of a model's own code, with a message that helps."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from identilens.errors import IdentilensError, UnsupportedModelError

MODELS_RAISE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


@contextmanager
def explained(model: str) -> Iterator[None]:
    """Replace an error of the model's own code on inputs that it cannot process by a clear error.

    Raises:
        UnsupportedModelError: For the model's own errors. Our errors and a lack of memory are raised unchanged.
    """
    try:
        yield
    except (IdentilensError, torch.OutOfMemoryError):
        raise
    except MODELS_RAISE as error:
        first = str(error).strip().split("\n")[0]
        raise UnsupportedModelError(
            f"{model} does not run on these inputs: {type(error).__name__}: {first}. Check that the model itself takes "
            "them; if it does, choose a model of another family (`identilens families`)."
        ) from error


@contextmanager
def derivable(model: str) -> Iterator[None]:
    """Replace the error of a model without a forward-mode derivative by a clear one.

    Raises:
        UnsupportedModelError: For such a model. Other errors are raised unchanged.
    """
    try:
        yield
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
        raise UnsupportedModelError(
            f"{model} computes with a torch.autograd.Function that has no forward-mode derivative, so it cannot be "
            "linearised: contributions of tokens, and certificates of its states and predictions, cannot be computed. "
            "Choose another model."
        ) from error
