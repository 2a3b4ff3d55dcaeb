"""The multi-head attention of torch, step by step, so that it can be followed."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from identilens.errors import UnsupportedModelError

_SIGNATURE = inspect.signature(nn.functional.multi_head_attention_forward)


def multi_head_attention(
    projections: Mapping[int, nn.Module], *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Return the output of ``torch.nn.functional.multi_head_attention_forward``, without weights.

    The output projection is called as a module if ``projections`` has one for its weight, by id.

    Raises:
        UnsupportedModelError: If keys or values have additional positions appended.
    """
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    arguments = given.arguments
    if (
        arguments["bias_k"] is not None
        or arguments["add_zero_attn"]
        or arguments["static_k"] is not None
    ):
        raise UnsupportedModelError(
            "torch's MultiheadAttention appends keys of its own (bias_k, add_zero_attn)."
        )
    queries, keys, values = (
        part.unflatten(-1, (arguments["num_heads"], -1)).permute(1, 2, 0, 3)
        for part in _projected(arguments)
    )
    logits = (queries @ keys.mT) * queries.shape[-1] ** -0.5
    for mask in (arguments["attn_mask"], arguments["key_padding_mask"]):
        if mask is not None:
            logits = _masked(
                logits, mask if mask is arguments["attn_mask"] else mask[:, None, None]
            )
    joined = (torch.softmax(logits, -1) @ values).permute(2, 0, 1, 3).flatten(2)
    weight, bias = arguments["out_proj_weight"], arguments["out_proj_bias"]
    module = projections.get(id(weight))
    output = nn.functional.linear(joined, weight, bias) if module is None else module(joined)
    return output if arguments["query"].ndim == 3 else output.squeeze(1), None


def _projected(arguments: dict[str, Any]) -> list[Tensor]:
    biases = [None] * 3 if arguments["in_proj_bias"] is None else arguments["in_proj_bias"].chunk(3)
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    separate = arguments["use_separate_proj_weight"]
    weights = (
        [arguments[name] for name in names] if separate else arguments["in_proj_weight"].chunk(3)
    )
    inputs = [
        arguments[name] if arguments[name].ndim == 3 else arguments[name][:, None]
        for name in ("query", "key", "value")
    ]
    return [
        nn.functional.linear(one, weight, bias)
        for one, weight, bias in zip(inputs, weights, biases, strict=True)
    ]


def _masked(logits: Tensor, mask: Tensor) -> Tensor:
    if mask.ndim == 3:
        mask = mask.unflatten(0, (len(logits), -1))
    return logits.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
