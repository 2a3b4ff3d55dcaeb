"""Errors of a model's own code, with a message that helps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from identilens.errors import IdentilensError, UnsupportedModelError
from identilens.models.offloading import is_offloaded

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
            "them; if it does, choose a model of another family (`identilens selfcheck --list`)."
        ) from error


def refuse_offloaded(model: nn.Module) -> None:
    """Raise for parameters that are not in memory, where derivatives or copies of them are needed.

    Raises:
        UnsupportedModelError: If some parameters wait on disk or CPU.
    """
    if is_offloaded(model):
        raise UnsupportedModelError(
            f"parameters of {type(model).__name__} are offloaded: they are loaded from disk or CPU layer by layer, "
            "which has no derivative. What runs the model alone works (audits, certificates of heads and layers, "
            "removal, rollout, inversion). For this, load the model whole, without offloading."
        )


class _WithoutGradientRequests(TorchFunctionMode):
    """Ignores ``requires_grad_``, which training with adapters or checkpoints leaves in hooks of the embeddings."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one torch function."""
        return args[0] if func is Tensor.requires_grad_ else func(*args, **(kwargs or {}))


@contextmanager
def derivable(model: nn.Module) -> Iterator[None]:
    """Replace the error of a model without a forward-mode derivative by a clear one.

    Raises:
        UnsupportedModelError: For such a model, or one that is offloaded. Other errors are raised unchanged.
    """
    refuse_offloaded(model)
    try:
        with _WithoutGradientRequests():
            yield
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
        raise UnsupportedModelError(
            f"{type(model).__name__} computes with a torch.autograd.Function that has no forward-mode derivative, so "
            "it cannot be linearised: contributions of tokens, and certificates of its states and predictions, cannot "
            "be computed. Choose another model."
        ) from error
