"""Attention weights from queries and keys, in float64."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg.checks import explained


@explained
def attention_logits(
    queries: Float[Tensor, "query d_k"],
    keys: Float[Tensor, "key d_k"],
    scaling: float,
    bias: Float[Tensor, "query key"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "query key"]:
    """Return s Q Kᵀ + bias in float64; with a soft cap c, c tanh(z / c) replaces the product z."""
    logits = scaling * queries.double() @ keys.double().mT
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits if bias is None else logits + bias.double()


@explained
def visible_softmax(
    logits: Float[Tensor, "query key"], visible: Bool[Tensor, "query key"] | None
) -> Float[Tensor, "query key"]:
    """Return the softmax over the visible keys; hidden keys get weight zero."""
    return torch.softmax(
        logits if visible is None else logits.masked_fill(~visible, -torch.inf), -1
    )
