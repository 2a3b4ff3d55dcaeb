"""What a model's own code raises, said in words that help."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from identilens.errors import IdentilensError, UnsupportedModelError

MODELS_RAISE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def explained(model: str) -> Iterator[None]:
    """Turn what a model's own code raises on inputs that it cannot be run on into an error that says so.

    Raises:
        UnsupportedModelError: From the model's own error; ours, and a lack of memory, are raised as they are.
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
