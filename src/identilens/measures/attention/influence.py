"""How much each key adds to a head's output.

Influential is not determined: the output can determine a weight that adds almost nothing to it. All functions take T or
its factors. Because T = F Qᵀ, the rows of T have the lengths and inner products of the compact rows F.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import ProjectedValues, projected
from identilens.linalg.checks import check_finite

Maps = Float[Tensor, "*head query key"]
"""A number of each key in each row of each head."""

_EXACT = "donot_use_mm_for_euclid_dist"

Values = Float[Tensor, "*#head key d_model"] | ProjectedValues
"""T of one or several heads, as a tensor or as factors; the heads of a group share an axis of length 1."""


def norm_share(weights: Maps, projected_values: Values) -> Maps:
    """Return the share of each key in the summed lengths of what all keys add: ‖a_ij t_j‖ / Σ_k ‖a_ik t_k‖.

    The norm of the weighted value vector of Kobayashi et al. 2020 ("Attention is Not Only a Weight"). In [0, 1], no
    unit. Rows sum to 1; a row whose parts are all zero is 0. Hidden keys have weight 0 and share 0. O(n²) per head.

    Examples:
        >>> norm_share(torch.tensor([[0.5, 0.5]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[1., 0.]], dtype=torch.float64)

    Raises:
        InputError: Weights over other keys than the values have.
        NumericalError: NaN or infinity.
    """
    rows, compact = _checked(weights, projected_values)
    lengths = rows.abs() * torch.linalg.vector_norm(compact, dim=-1)[..., None, :]
    return share_of(lengths, lengths.sum(-1, keepdim=True))


def contribution_weights(weights: Maps, projected_values: Values) -> Maps:
    """Return each key's share of the head's output along its direction: a_ij ⟨t_j, o_i⟩ / ‖o_i‖², o_i = Σ_k a_ik t_k.

    Contribution Weights of Cunningham and Muça Cirone 2026 (arXiv 2606.07604), here for the output of one head. They
    depend on the weight, the size of the value and its alignment with the output. Rows sum to 1; a key whose part
    points against the output is negative. No unit. Rows whose output is zero are 0. O(n² r) per head.

    Examples:
        >>> contribution_weights(torch.tensor([[0.5, 0.5]]), torch.tensor([[3.0, 0.0], [-1.0, 0.0]]))
        tensor([[ 1.5000, -0.5000]], dtype=torch.float64)

    Raises:
        InputError: Weights over other keys than the values have.
        NumericalError: NaN or infinity.
    """
    rows, compact = _checked(weights, projected_values)
    outputs = rows @ compact
    return share_of(rows * (outputs @ compact.mT), outputs.square().sum(-1, keepdim=True))


def removal_effect(weights: Maps, projected_values: Values, *, relative: bool = False) -> Maps:
    """Return ‖o'_i − o_i‖ when key j is hidden from query i and the other weights are scaled up to sum to 1 again.

    Exact for one head; effects on other heads and later layers are not included. Hiding a key from the softmax scales
    the other weights up, so o' − o = a/(1 − a) · (o − t_j), of length a/(1 − a) · ‖t_j − o‖. At a = 1 no other weight
    is left: NaN. For the key of largest weight the output without it is computed, because the formula loses digits at
    weights close to 1. Rows must sum to 1. In the unit of the values; with ``relative`` divided by ‖o_i‖ (infinite or
    NaN where the output is zero). Hidden keys have weight 0 and effect 0. O(n² r) per head.

    Examples:
        >>> removal_effect(torch.tensor([[0.5, 0.5]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]), relative=True)
        tensor([[1., 1.]], dtype=torch.float64)

    Raises:
        InputError: Weights over other keys than the values have.
        NumericalError: NaN or infinity.
    """
    rows, compact = _checked(weights, projected_values)
    outputs = rows @ compact
    # ‖t − o‖ from differences, not from ‖t‖² − 2⟨t, o⟩ + ‖o‖², which loses half the digits of near keys.
    apart = torch.cdist(outputs, compact.expand(*outputs.shape[:-2], -1, -1), compute_mode=_EXACT)
    top = rows.argmax(-1, keepdim=True)
    others = rows.scatter(-1, top, 0.0)
    removed = (others @ compact) / others.sum(-1, keepdim=True)
    at_top = torch.linalg.vector_norm(removed - outputs, dim=-1, keepdim=True)
    effect = (others / (1 - others) * apart).scatter(-1, top, at_top)
    return effect / torch.linalg.vector_norm(outputs, dim=-1, keepdim=True) if relative else effect


def _checked(weights: Tensor, projected_values: Values) -> tuple[Tensor, Tensor]:
    """Return weights and compact values in float64."""
    T = projected(projected_values)
    check_finite(weights=weights, compact=T.compact)
    shape = tuple(getattr(weights, "shape", ()))
    if len(shape) < 2 or shape[-1] != T.keys:
        raise InputError(
            f"expected weights (..., query, key) over the {T.keys} keys of the values; got {shape}; pass weights and "
            "values of the same text and head."
        )
    return weights.detach().double(), T.compact.detach()


def share_of(parts: Tensor, total: Tensor) -> Tensor:
    """Return parts / total, 0 where the total is zero."""
    return torch.where(total > 0, parts / total, 0.0)
