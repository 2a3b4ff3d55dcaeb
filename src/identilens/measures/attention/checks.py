"""Checks of weights before their alternatives or their effective part are computed."""

from numbers import Integral

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HALF, ProjectedValues, Visible
from identilens.linalg.checks import check_finite, check_mask

SUM_ERROR = 1e-3
"""Largest accepted error of a row's sum, and largest weight on a hidden key: these are rounding errors.

Rows are divided by their sum."""

SUM_ROUNDING = 1e-12
"""Rows whose sum is this close to 1 are normalised in float64, and stay as they are."""


def check_precision(weights: Tensor) -> None:
    """Raise for weights in half precision: their rounding errors would change ranks, intervals and alternatives.

    Raises:
        InputError: Weights in float16 or bfloat16, or what is no tensor.
    """
    if not isinstance(weights, Tensor):
        raise InputError(f"expected attention weights as a tensor; got {type(weights).__name__}.")
    if weights.dtype in HALF:
        raise InputError(
            f"expected attention weights in float32 or float64; got {str(weights.dtype).removeprefix('torch.')}; "
            "compute them as softmax(scaling * Q @ K.T) with Q and K in float64 (values may stay in half precision), "
            'or load the model with dtype="float32" (--dtype float32).'
        )


def check_numbers(least: int, **numbers: int) -> None:
    """Raise for what is no whole number, and for one that is too small."""
    for name, number in numbers.items():
        if not isinstance(number, Integral) or int(number) < least:
            raise InputError(
                f"expected a whole number as {name} of at least {least}; got {number!r}."
            )


def checked_weights(
    weights: Float[Tensor, "query key"],
    projected: ProjectedValues,
    visible: Bool[Tensor, "query key"] | None = None,
) -> Float[Tensor, "query key"]:
    """Return the weights in float64, each row divided by its sum, if they are distributions over T's rows.

    Raises:
        InputError: Weights in half precision, a negative weight, a row that does not sum to one, T of another
            length, a mask of another shape, a query that sees nothing, weight on a hidden key.
        NumericalError: NaN or infinity.
    """
    if not isinstance(weights, Tensor) or weights.ndim != 2:
        got = getattr(weights, "shape", type(weights).__name__)
        raise InputError(
            f"expected attention weights as a tensor of shape (query, key); got {got}; pass one head of one text "
            "(weights[None] for a single row; weights[i] if the function takes a row)."
        )
    queries, keys = weights.shape
    if projected.keys != keys:
        raise InputError(
            f"expected one row of projected values for each of the {keys} keys; got {projected.keys} rows; "
            "pass weights and values of the same text and head."
        )
    check_mask(visible, queries, keys)
    check_precision(weights)
    check_finite(weights=weights)
    rows = weights.detach().double()
    if rows.numel() and rows.min() < 0:
        raise InputError(
            f"expected attention weights of at least 0; got {rows.min().item():.3g}; pass the weights after softmax "
            "(effective attention and logits are not distributions)."
        )
    sums = rows.sum(-1)
    if ((sums - 1).abs() > SUM_ERROR).any():
        row = int((sums - 1).abs().argmax())
        raise InputError(
            f"expected rows of attention weights that sum to 1; row {row} sums to {sums[row].item():.4f}; "
            "if the model has an attention sink, add it as one more key whose projected value is zero."
        )
    rows = without_hidden(rows, visible)
    sums = rows.sum(-1, keepdim=True)
    return rows / torch.where((sums - 1).abs() > SUM_ROUNDING, sums, 1.0)


def without_hidden(
    weights: Float[Tensor, "*batch query key"], visible: Visible
) -> Float[Tensor, "*batch query key"]:
    """Return the weights with exact zeros on hidden keys; weights up to `SUM_ERROR` there are rounding.

    Raises:
        InputError: Weight on a hidden key, in any head.
    """
    if visible is None or not weights.numel():
        return weights
    hidden = weights.masked_fill(visible, 0.0).abs().amax(-1)
    if hidden.max() > SUM_ERROR:
        *head, row = torch.nonzero(hidden == hidden.max())[0].tolist()
        raise InputError(
            f"expected no weight on hidden keys; row {row}{f' of head {head}' if head else ''} puts "
            f"{float(hidden.max()):.3g} on a key that `visible` hides; pass the mask with which the weights were "
            "computed."
        )
    return weights.masked_fill(~visible, 0.0)
