"""Checks of values and masks, with errors that name the remedy."""

import torch
from torch import Tensor

from identilens.errors import InputError, NumericalError


def check_finite(**tensors: Tensor | None) -> None:
    """Raise for tensors with NaN or infinite entries, with the name of the tensor and their number."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor) or tensor.is_sparse:
            raise InputError(f"{name} must be a dense tensor; got {type(tensor).__name__}.")
        # A sum is finite only if every term is, and costs one pass.
        if torch.isfinite(tensor.sum()):
            continue
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise NumericalError(
                f"{name} has {bad} NaN or infinite entries of {tensor.numel()}. "
                "Look for an overflow in half precision (load with dtype float32) or a broken checkpoint."
            )


def check_values(values: Tensor, output_projection: Tensor | None = None) -> None:
    """Raise for values (key, d_v) and an output projection (d_v, d_model) that are empty, not finite or do not fit.

    The projection has a block for each head of the values, or is one for all.
    """
    check_finite(values=values, output_projection=output_projection)
    if values.ndim < 2 or 0 in values.shape[-2:]:
        raise InputError(
            f"values must be (..., key, d_v) with at least one key; got {tuple(values.shape)}. "
            "An empty text has no attention: leave it out."
        )
    if output_projection is None:
        return
    if output_projection.shape[-2:-1] != values.shape[-1:]:
        raise InputError(
            f"output_projection must be (..., d_v, d_model) with d_v = {values.shape[-1]} as in values; "
            f"got {tuple(output_projection.shape)}. A torch Linear keeps its weight transposed: pass weight.T."
        )
    try:
        output_projection.expand(*values.shape[:-2], -1, -1)
    except RuntimeError as error:
        raise InputError(
            "output_projection must have a block (d_v, d_model) for each head of the values, or one for all; got "
            f"{tuple(output_projection.shape)} for values of shape {tuple(values.shape)}. "
            "Repeat grouped values once for each of their heads."
        ) from error


def check_mask(visible: Tensor | None, queries: int, keys: int) -> None:
    """Raise for a visible mask that is not boolean (query, key), or hides every key from a query."""
    if visible is None:
        return
    check_finite(visible=visible[:0])  # a tensor; booleans need no sum
    if visible.dtype != torch.bool or visible.shape != (queries, keys):
        raise InputError(
            f"visible must be a boolean mask of shape ({queries}, {keys}); "
            f"got {visible.dtype} of shape {tuple(visible.shape)}."
        )
    if not visible.any(-1).all():
        raise InputError(
            "visible hides every key from at least one query. Leave padded queries out."
        )
