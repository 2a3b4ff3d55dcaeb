"""Attention rollout of one text, to compare contributions with."""

from typing import NamedTuple

import torch
from torch import Tensor

from identilens.errors import UnsupportedModelError
from identilens.measures.attention import effective_attention
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads
from identilens.models.capture import Collector
from identilens.models.inputs import Item
from identilens.models.lens import Lens


class Rollout(NamedTuple):
    """Rollouts of one kind of self-attention, of the weights as they are and of effective attention."""

    raw: Tensor
    effective: Tensor


def text_rollouts(lens: Lens, item: Item) -> dict[str, Rollout]:
    """Return raw and effective attention rollout of every kind of self-attention.

    Raises:
        UnsupportedModelError: If some layers are no attention.
    """
    sites = lens.sites(item)
    if lens.other_layers:
        raise UnsupportedModelError(
            f"rollout multiplies the attention of all layers, and {', '.join(lens.other_layers)} have none. "
            "Choose a model with attention in every layer, or use the audit, which needs one layer at a time."
        )
    collector = Collector(sites, [item], weights=True)
    lens.run([item], collector)
    layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for layer in collector.layers[0]:
        if layer.site.kind == "cross" or layer.weights is None:
            continue
        group = len(layer.queries) // len(layer.values)
        effective = effective_attention(
            layer.values.repeat_interleave(group, 0), weights=layer.weights, visible=layer.visible,
            output_projection=layer.site.output_projection,
        ).effective  # fmt: skip
        pair = mean_over_heads(layer.weights.to(effective.dtype)), mean_over_heads(effective)
        layers.setdefault(layer.site.kind, []).append(pair)
    return {
        kind: Rollout(*(attention_rollout(torch.stack(weights)) for weights in zip(*pairs, strict=True)))
        for kind, pairs in layers.items()
    }
