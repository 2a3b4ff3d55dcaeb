"""What weights must look like before an alternative is sought."""

from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import ProjectedValues
from identilens.linalg.checks import check_finite, check_mask

SUM_ERROR = 1e-3
"""How far a row of weights may be from summing to one: rounding of half precision, not more."""


def checked_weights(
    weights: Float[Tensor, "query key"], projected: ProjectedValues, visible: Bool[Tensor, "query key"] | None = None
) -> Float[Tensor, "query key"]:
    """Return the weights in float64 after checking that they are distributions over T's rows.

    Raises:
        InputError: A negative weight, a row that does not sum to one, a T of another length, a mask of
            another shape, a query that sees nothing, weight on a hidden key.
        NumericalError: NaN or infinity.
    """
    queries, keys = weights.shape
    if projected.keys != keys:
        raise InputError(
            f"expected one row of projected values for each of the {keys} keys; got {projected.keys} rows; "
            "pass weights and values of the same text and head."
        )
    check_mask(visible, queries, keys)
    rows = weights.detach().double()
    check_finite(weights=rows)
    if rows.numel() and rows.min() < 0:
        raise InputError(
            f"expected attention weights of at least 0; got {rows.min().item():.3g}; pass the weights after softmax "
            "(effective attention and logits are no distributions)."
        )
    sums = rows.sum(-1)
    if ((sums - 1).abs() > SUM_ERROR).any():
        row = int((sums - 1).abs().argmax())
        raise InputError(
            f"expected rows of attention weights that sum to 1; row {row} sums to {sums[row].item():.4f}; "
            "if the model has an attention sink, add it as one more key whose projected value is zero."
        )
    if visible is None:
        return rows
    hidden = rows.masked_fill(visible, 0.0).amax(-1)
    if hidden.max() > SUM_ERROR:
        raise InputError(
            f"expected no weight on hidden keys; row {int(hidden.argmax())} puts some on a key that `visible` hides; "
            "pass the mask with which the weights were computed."
        )
    return rows.masked_fill(~visible, 0.0)
