"""Eager attention, for our own models whose attention is called by the interface of transformers."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def eager_attention_forward(
    module: nn.Module, query: Float[Tensor, "batch head query d_k"], key: Float[Tensor, "batch head key d_k"],
    value: Float[Tensor, "batch head key d_v"], attention_mask: Tensor | None, scaling: float, dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Float[Tensor, "batch query head d_v"], Float[Tensor, "batch head query key"]]:  # fmt: skip
    """Return head outputs and attention weights (Vaswani et al. 2017, Eq. 1)."""
    logits = query @ key.mT * scaling
    if attention_mask is not None:
        logits = logits + attention_mask
    weights = torch.softmax(logits, -1)
    if dropout:
        weights = nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
