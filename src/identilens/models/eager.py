"""Softmax attention, step by step: for our own models, and for those without a function that computes it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def eager_attention_forward(
    module: nn.Module,
    query: Float[Tensor, "batch head query d_k"],
    key: Float[Tensor, "batch group key d_k"],
    value: Float[Tensor, "batch group key d_v"],
    attention_mask: Tensor | None,
    scaling: float,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Float[Tensor, "batch query head d_v"], Float[Tensor, "batch head query key"]]:
    """Return head outputs and attention weights (Vaswani et al. 2017, Eq. 1); the softmax is in float32 or higher."""
    exact = torch.promote_types(query.dtype, torch.float32)
    if (group := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    logits = query.to(exact) @ key.to(exact).mT * scaling
    for term in (position_bias, attention_mask):
        logits = logits if term is None else logits + term
    weights = torch.softmax(logits, -1).to(value.dtype)
    if dropout:
        weights = nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
