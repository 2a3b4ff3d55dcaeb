"""How much each key adds to a head's output: sizes of its part, whatever other weights give the same output.

Influence is not determinacy: a weight can be fixed by the output and add next to nothing to it. All functions take
T or its factors; lengths and inner products of T's rows are those of the compact rows F, as T = F Qᵀ.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import ProjectedValues, compact_values, projected
from identilens.linalg.checks import check_finite

_EXACT = "donot_use_mm_for_euclid_dist"

Values = Float[Tensor, "*#head key d_model"] | ProjectedValues
"""T of one head or of several, as a tensor or as factors; an axis of length 1 is shared by the heads of a group."""


def norm_share(weights: Float[Tensor, "*head query key"], projected_values: Values) -> Float[Tensor, "*head query key"]:
    """Return the share of each key in the summed lengths of all that keys add: ‖a_ij t_j‖ / Σ_k ‖a_ik t_k‖.

    Kobayashi et al. 2020 ("Attention is Not Only a Weight"), the norm of the weighted value vector. In [0, 1], no unit;
    rows sum to 1, but for those whose parts are all zero: they are 0. Hidden keys, of weight 0, have 0. O(n²) a head.

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


def contribution_weights(
    weights: Float[Tensor, "*head query key"], projected_values: Values
) -> Float[Tensor, "*head query key"]:
    """Return how far each key's part carries along the head's output: a_ij ⟨t_j, o_i⟩ / ‖o_i‖², o_i = Σ_k a_ik t_k.

    Contribution Weights of Cunningham and Muça Cirone 2026 (arXiv 2606.07604), here against the output of one head:
    weight, size of the value and its alignment with the output. Rows sum to 1; a key that pulls against the output is
    negative. No unit. Rows whose output is zero have no direction and are 0. O(n² r) a head.

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


def removal_effect(
    weights: Float[Tensor, "*head query key"], projected_values: Values, *, relative: bool = False
) -> Float[Tensor, "*head query key"]:
    """Return ‖o'_i − o_i‖ when key j is hidden from query i and the other weights are scaled up to sum to 1 again.

    Exact for one head (what other heads, and layers behind, make of it is left out): hiding a key from the softmax
    scales the others up, so o' − o = a/(1 − a) · (o − t_j), of length a/(1 − a) · ‖t_j − o‖. At a = 1 nothing is left
    to scale up: NaN. The key of largest weight is really removed, so that a weight close to 1 keeps its digits. Rows
    are taken to sum to 1. In the unit of the values, or without one when ``relative`` to ‖o_i‖ (infinite or NaN where
    the output is zero). Hidden keys, of weight 0, have 0. O(n² r) a head.

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


def value_norm_ratio(projected_values: Values) -> Float[Tensor, "*#head key"]:
    """Return the length of each key's value over the median of all keys', ‖t_j‖ / median_k ‖t_k‖.

    Far below 1 at keys that draw attention and add little (sinks, heads that rest). No unit; where the median is zero,
    zero values are 0, others infinite. For rows that see some keys only pass ``projected_values.restricted(seen)``.

    Examples:
        >>> value_norm_ratio(torch.tensor([[0.0, 0.1], [3.0, 4.0], [0.0, 5.0]]))
        tensor([0.0200, 1.0000, 1.0000], dtype=torch.float64)

    Raises:
        InputError: No keys.
        NumericalError: NaN or infinity.
    """
    lengths = torch.linalg.vector_norm(projected(projected_values).compact, dim=-1)
    return torch.where(lengths > 0, lengths / lengths.quantile(0.5, dim=-1, keepdim=True), 0.0)


def residual_share(
    head_output: Float[Tensor, "*head query d_v"],
    residual: Float[Tensor, "query d_model"],
    output_projection: Float[Tensor, "*#head d_v d_model"] | None = None,
) -> Float[Tensor, "*head query"]:
    """Return how large a head's output is beside the residual stream that it is added to: ‖o_i W_O‖ / ‖x_i‖.

    Near 0 where a head rests. No unit; infinite, or NaN for a zero output, where the stream is zero.

    Args:
        head_output: A V; or A T, in any orthonormal basis, without a projection.
        residual: x, the stream at each query before the head's output is added.
        output_projection: W_O, each head's block, bias left out.

    Examples:
        >>> residual_share(torch.tensor([[0.3, 0.4]]), torch.tensor([[0.0, 5.0]]))
        tensor([0.1000], dtype=torch.float64)

    Raises:
        InputError: Another number of queries in the output than in the stream.
        NumericalError: NaN or infinity.
    """
    check_finite(head_output=head_output, residual=residual, output_projection=output_projection)
    if head_output.shape[-2] != residual.shape[-2]:
        raise InputError(
            f"expected a row of the residual stream for each of the {head_output.shape[-2]} queries; got "
            f"{residual.shape[-2]}; pass the stream of the same text, at its queries."
        )
    outputs = compact_values(head_output, output_projection)
    return torch.linalg.vector_norm(outputs, dim=-1) / torch.linalg.vector_norm(residual.double(), dim=-1)


def _checked(weights: Tensor, projected_values: Values) -> tuple[Tensor, Tensor]:
    """Return weights and compact values in float64."""
    T = projected(projected_values)
    check_finite(weights=weights, compact=T.compact)
    if weights.shape[-1] != T.keys:
        raise InputError(
            f"expected weights over the {T.keys} keys of the values; got {weights.shape[-1]}; pass weights and values "
            "of the same text and head."
        )
    return weights.detach().double(), T.compact.detach()


def share_of(parts: Tensor, whole: Tensor) -> Tensor:
    """Return parts / whole, 0 where the whole is zero."""
    return torch.where(whole > 0, parts / whole, 0.0)
