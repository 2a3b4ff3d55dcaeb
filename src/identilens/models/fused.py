"""Attention of calls to fused attention, of which the weights, and their products with further columns, are wanted."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from identilens.linalg.row_sums import times_few
from identilens.models.at_once import texts_of_a_product
from identilens.models.interface import AttentionCall


class Scratch:
    """Memory that is used again, so that large tensors of one kind are not allocated anew: one tensor at a time."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an uninitialised tensor of the precision and device of another; the one before it is lost."""
        entries, kept = math.prod(shape), self._kept
        if (
            kept is None
            or kept.dtype != like.dtype
            or kept.device != like.device
            or len(kept) < entries
        ):
            self._kept = kept = like.new_empty(entries)
        return kept[:entries].view(shape)


_MORE = ("position_bias", "softcap", "cache", "dropout")


def attend_with(
    call: AttentionCall,
    rows: slice,
    columns: Float[Tensor, "batch head key column"],
    scratch: Scratch,
    causal: bool,
) -> tuple[Tensor, Tensor, Float[Tensor, "batch head row column"]]:
    """Return output and weights of query rows as `AttentionCall.attend` does, and the weights times ``columns``.

    A model that calls PyTorch's fused attention computes softmax(s Q Kᵀ) V over the visible keys, and so does this; of
    other calls the weights are those of the family's eager attention. Their product with ``columns``, a few, has the
    columns' precision. If every row sees the keys up to its own, ``causal``, weights of the short way end at the last
    row's key.
    """
    if not is_fused(call, columns.dtype):
        output, weights = call.attend(rows)
        return output, weights, times_few(weights.to(columns.dtype), columns)
    weights = fused_weights(call, rows, scratch, causal)
    seen = weights.shape[-1]
    value = by_head(call, call.value[:, :, :seen])
    output = weights.new_empty(*weights.shape[:-1], value.shape[-1])
    for some in texts_of_a_product(len(value), value.device):
        torch.matmul(weights[some], value[some], out=output[some])
    return output.transpose(1, 2), weights, times_few(weights, columns[..., :seen, :])


def fused_weights(
    call: AttentionCall, rows: slice, scratch: Scratch, causal: bool = False
) -> Float[Tensor, "batch head row key"]:
    """Return the weights of query rows of a call to fused attention, in scratch memory; see `attend_with`."""
    query = call.query[:, :, rows]
    keys = by_head(call, call.key[:, :, : rows.stop] if causal else call.key)
    scaling = call.arguments.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = scratch.take((*query.shape[:3], keys.shape[-2]), query)
    for some in texts_of_a_product(len(query), query.device):
        logits, one, key = (part[some].flatten(0, 1) for part in (weights, query, keys))
        torch.baddbmm(logits, one, key.mT, beta=0, alpha=scaling, out=logits)
    seen = None if causal else call.visible(rows)
    if causal:
        later = torch.ones(
            query.shape[2], query.shape[2], dtype=torch.bool, device=query.device
        ).triu_(1)
        weights[..., rows].masked_fill_(later, torch.finfo(weights.dtype).min)
    elif seen is not None and not bool(seen.all()):
        weights.masked_fill_(~seen[:, None], torch.finfo(weights.dtype).min)
    return torch.softmax(weights, -1, out=weights)


def by_head(
    call: AttentionCall, given: Float[Tensor, "batch group key d"]
) -> Float[Tensor, "batch head key d"]:
    """Return keys or values of every head, of which those of a group are the same."""
    group = call.query.shape[1] // given.shape[1]
    return given if group == 1 else given.repeat_interleave(group, 1)


def is_fused(call: AttentionCall, dtype: torch.dtype) -> bool:
    """Return whether a call is one of PyTorch's fused attention in this precision, with no more than a mask."""
    plain = call.own is sdpa_attention_forward and call.windows == 1 and not call.has_sink
    masked = call.mask is None or call.mask.dtype == torch.bool
    return (
        plain
        and masked
        and call.query.dtype == dtype
        and not any(_given(call, name) for name in _MORE)
    )


def _given(call: AttentionCall, name: str) -> bool:
    value = call.arguments.get(name)
    return value is not None and not (name == "dropout" and value == 0)
