"""Errors of a model's own code, with a message that helps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from identilens.errors import IdentilensError, UnsupportedModelError, first_line
from identilens.linalg import HALF
from identilens.models.interface import configured
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
def explained(model: nn.Module) -> Iterator[None]:
    """Replace an error of the model's own code on inputs that it cannot process by a clear error.

    Raises:
        UnsupportedModelError: For the model's own errors. Our errors and a lack of memory are raised unchanged.
    """
    try:
        yield
    except (IdentilensError, torch.OutOfMemoryError):
        raise
    except MODELS_RAISE as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run on these inputs: {type(error).__name__}: {first_line(error)}. Check "
            "that the model itself takes them; if it does, choose a model of another family (`identilens selfcheck "
            "--list`)."
        ) from error


class Exact(TorchFunctionMode):
    """Computes in float32 what a model computes in half precision, and in float64 what it would round to float32.

    Parameters are cast as they are used. Requests for gradients, which training with adapters or checkpoints leaves in
    hooks of the embeddings, do nothing.

    Args:
        least: The least precision.
    """

    def __init__(self, least: torch.dtype = torch.float64) -> None:
        self._least = least

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one torch function; attributes of a tensor are read as they are."""
        if func is Tensor.requires_grad_:
            return args[0]
        if func is Tensor.float:
            return args[0].to(self._least)
        if getattr(func, "__name__", "") != "__get__":
            args = self._cast(args)
            kwargs = {name: self._cast(value) for name, value in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))

    def _cast(self, value: Any) -> Any:
        """Return the least precision for a coarser one, plain tensors of half precision in it, and what holds them."""
        if type(value) in (tuple, list):
            return type(value)(map(self._cast, value))
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.promote_types(value, self._least)
        if isinstance(value, Tensor) and value.dtype in HALF:
            return value if is_traceable_wrapper_subclass(value) else value.to(self._least)
        return value


@contextmanager
def derivable(model: nn.Module) -> Iterator[None]:
    """Compute in single precision at least, and replace the error of a model without a forward-mode derivative.

    Raises:
        UnsupportedModelError: For such a model, or one that is offloaded. Other errors are raised unchanged.
    """
    if is_offloaded(model):
        raise UnsupportedModelError(
            f"parameters of {type(model).__name__} are offloaded: they are loaded from disk or CPU layer by layer, "
            "which has no derivative. What runs the model alone works (audits, certificates of heads and layers, "
            "removal, rollout, inversion). For this, load the model whole, without offloading."
        )
    exact = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    # Mixtures of experts run expert by expert, because their grouped product has no forward-mode rule.
    experts = configured(model, "_experts_implementation_internal", "eager")
    try:
        with experts, Exact(exact):
            yield
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
        raise UnsupportedModelError(
            f"{type(model).__name__} computes with a torch.autograd.Function that has no forward-mode derivative, so "
            "it cannot be linearised: contributions of tokens, and certificates of its states and predictions, cannot "
            "be computed. Choose another model."
        ) from error
