"""Attention of calls to fused attention, whose weights mix further columns in the same product as the values."""

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from identilens.models.interface import AttentionCall

_MORE = ("position_bias", "softcap", "cache", "dropout")


def attend_with(
    call: AttentionCall, rows: slice, columns: Float[Tensor, "batch head key column"]
) -> tuple[Tensor, Tensor, Float[Tensor, "batch head row column"]]:
    """Return output and weights of query rows as `AttentionCall.attend` does, and the weights times ``columns``.

    A model that calls PyTorch's fused attention computes softmax(s Q Kᵀ) V over the visible keys, and so does this; of
    other calls the weights are those of the family's eager attention. Their product with ``columns`` has the columns'
    precision.
    """
    if not _is_fused(call, columns.dtype):
        output, weights = call.attend(rows)
        return output, weights, weights.to(columns.dtype) @ columns
    query, group = call.query[:, :, rows], call.query.shape[1] // call.key.shape[1]
    key, value = (one if group == 1 else one.repeat_interleave(group, 1) for one in (call.key, call.value))
    scaling = call.arguments.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    batch, (width, d_v) = query.shape[:2], (key.shape[-2], value.shape[-1])
    empty = query.new_empty(batch.numel(), query.shape[2], width)
    logits = torch.baddbmm(empty, query.flatten(0, 1), key.flatten(0, 1).mT, beta=0, alpha=scaling, out=empty)
    weights = logits.unflatten(0, batch)
    seen = call.visible(rows)
    if seen is not None and not bool(seen.all()):
        weights.masked_fill_(~seen[:, None], torch.finfo(weights.dtype).min)
    weights = torch.softmax(weights, -1)
    if query.shape[2] < call.query.shape[2]:
        # Of a few rows of a long text: no second copy of the values.
        return (weights @ value).transpose(1, 2), weights, weights @ columns
    mixed = weights @ torch.cat([value, columns], -1)
    return mixed[..., :d_v].transpose(1, 2), weights, mixed[..., d_v:]


def _is_fused(call: AttentionCall, dtype: torch.dtype) -> bool:
    """Return whether a call is one of PyTorch's fused attention in this precision, with no more than a mask."""
    plain = call.own is sdpa_attention_forward and call.windows == 1 and not call.has_sink
    masked = call.mask is None or call.mask.dtype == torch.bool
    return plain and masked and call.query.dtype == dtype and not any(_given(call, name) for name in _MORE)


def _given(call: AttentionCall, name: str) -> bool:
    value = call.arguments.get(name)
    return value is not None and not (name == "dropout" and value == 0)
