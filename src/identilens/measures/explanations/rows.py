"""Explanations of attention rows: a score of each key, from the weights and the projected values."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg import ProjectedValues
from identilens.measures.attention.determined import certain_weights
from identilens.measures.attention.influence import contribution_weights, norm_share, removal_effect

Rows = Float[Tensor, "row key"]
Mask = Bool[Tensor, "row key"] | None


def _removal(weights: Rows, T: ProjectedValues) -> Rows:
    """Return the effect of removing each key; the whole output for a key that has all the weight."""
    norm = torch.linalg.vector_norm(weights @ T.compact.to(weights.dtype), dim=-1, keepdim=True)
    effect = removal_effect(weights, T)
    return torch.where(effect.isnan(), norm.to(effect.dtype), effect)


ROW_EXPLANATIONS: dict[str, Callable[[Rows, ProjectedValues, Mask], Rows]] = {
    "raw": lambda weights, T, visible: weights,
    "effective": lambda weights, T, visible: T.effective(weights, visible).abs(),
    "norm": lambda weights, T, visible: norm_share(weights, T),
    "contribution": lambda weights, T, visible: contribution_weights(weights, T).abs(),
    "removal": lambda weights, T, visible: _removal(weights, T),
    "certain": lambda weights, T, visible: certain_weights(weights, T, visible=visible),
}
"""Scores by name: the weight (raw), |effective weight| (Brunner et al. 2020), norm share (Kobayashi et al. 2020),
|Contribution Weight| (Cunningham and Muça Cirone 2026), change of the head's output without the key (removal), and the
least value in any alternative (certain)."""


def explain_rows(
    weights: Rows, projected_values: ProjectedValues, visible: Mask = None
) -> dict[str, Rows]:
    """Return every explanation of some rows of one head's map, by name; scores are at least 0, larger means more.

    Examples:
        >>> import torch
        >>> from identilens.linalg import ProjectedValues
        >>> from identilens.measures.explanations import explain_rows
        >>> T = ProjectedValues.of(torch.tensor([[0.0], [1.0], [0.5]]))
        >>> found = explain_rows(torch.tensor([[0.8, 0.1, 0.1]], dtype=torch.float64), T)
        >>> list(found), found["norm"].round(decimals=2)
        (['raw', 'effective', 'norm', 'contribution', 'removal', 'certain'],
        tensor([[0.0000, 0.6700, 0.3300]], dtype=torch.float64))

    Raises:
        InputError: Weights that are not distributions over T's rows.
        NumericalError: A program whose answer cannot be certified.
    """
    return {
        name: explain(weights, projected_values, visible)
        for name, explain in ROW_EXPLANATIONS.items()
    }


def value_zeroing(
    output: Float[Tensor, "row d_model"], without: Float[Tensor, "key row d_model"]
) -> Float[Tensor, "row key"]:
    """Return 1 − cos of a layer's output with and without each key's value (Mohebbi et al. 2023), in [0, 2].

    ``without`` has the layer's output when the key's value vector is zero, and all weights are as before. Here the
    value is that of one head; the paper zeroes it in all heads of the layer.

    Examples:
        >>> import torch
        >>> from identilens.measures.explanations import value_zeroing
        >>> value_zeroing(torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([[0., 1.]], dtype=torch.float64)
    """
    full, parts = output.double(), without.double()
    full, parts = (
        part / torch.linalg.vector_norm(part, dim=-1, keepdim=True) for part in (full, parts)
    )
    # Half the squared distance of unit vectors: 1 − cos without loss of digits near 0.
    return ((parts - full).square().sum(-1) / 2).mT
