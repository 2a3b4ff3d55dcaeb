"""Attention weights from queries and keys, in float64."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg.memory import wide
from identilens.linalg.tolerance import FLOAT32_EPS

STORED_ROUNDINGS = 2
"""Number of roundings to the model's precision in a weight, each as large as its row's largest logit allows."""
SUM_ROUNDINGS = 32
"""Number of roundings to float32 in the sum of q · k, relative to the product of their norms."""


def attention_logits(
    queries: Float[Tensor, "*batch query d_k"],
    keys: Float[Tensor, "*batch key d_k"],
    scaling: float,
    bias: Float[Tensor, "*#batch query key"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "*batch query key"]:
    """Return s Q Kᵀ + bias in float64; with a soft cap c, c tanh(z / c) replaces the product z."""
    logits = scaling * wide(queries) @ wide(keys).mT
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits if bias is None else logits + wide(bias)


def visible_softmax(
    logits: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "*#batch query key"] | None
) -> Float[Tensor, "*batch query key"]:
    """Return the softmax over the visible keys; hidden keys get weight zero."""
    return torch.softmax(
        logits if visible is None else torch.where(visible, logits, -torch.inf), -1
    )


def follow_logits(
    weights: Float[Tensor, "*batch query key"],
    recomputed: Float[Tensor, "*batch query key"],
    logits: Float[Tensor, "*batch query key"],
    queries: Float[Tensor, "*batch query d_k"],
    keys: Float[Tensor, "*batch key d_k"],
    scaling: float,
    visible: Bool[Tensor, "*#batch query key"] | None,
) -> Bool[Tensor, "*batch"]:
    """Return whether a family's weights equal the recomputed softmax of the logits up to rounding, for each head.

    ε is that of the model's precision, or of float32 if that is coarser (families compute the softmax in float32). The
    accepted error of a row's weights is 2 ε (1 + max |logit|), because logits and weights are stored, plus
    32 ε_float32 (1 + s ‖q‖ max ‖k‖), because sums are in float32. Rows must sum to one within ε / 2 + 32 ε_float32, the
    rounding of the softmax. Errors of the logits do not change this sum, so a sink is noticed.
    """
    rounding = SUM_ROUNDINGS * FLOAT32_EPS
    eps = max(FLOAT32_EPS, *(torch.finfo(part.dtype).eps for part in (queries, weights)))
    size = (logits if visible is None else torch.where(visible, logits, 0.0)).abs().amax(-1)
    asking, asked = (torch.linalg.vector_norm(wide(side), dim=-1) for side in (queries, keys))
    product = abs(scaling) * asking * asked.amax(-1, keepdim=True)
    limit = STORED_ROUNDINGS * eps * (1 + size) + rounding * (1 + product)
    weights = wide(weights)
    close = (recomputed - weights).abs().amax(-1) <= limit
    return (close & ((weights.sum(-1) - 1).abs() <= eps / 2 + rounding)).all(-1)
