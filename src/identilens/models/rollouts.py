"""Rollouts of one text: how much of each input token reaches each position, layer after layer, by several weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.errors import UnsupportedModelError
from identilens.linalg.memory import wide
from identilens.measures.attention.effective import effective_attention
from identilens.measures.mixing.alti import alti_contributions, alti_rollout
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads, norm_weights
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.layout import layer_of
from identilens.models.lens import Lens
from identilens.models.outputs import relative
from identilens.models.proof import NOISE
from identilens.models.threads import Inputs, first_input, hooked

Read = tuple[nn.Module, Float[Tensor, "position d"]]
"""A layer or a norm, and what it read."""


class Rollout(NamedTuple):
    """Rollouts of one kind of self-attention, of the weights as they are and of effective attention."""

    raw: Tensor
    effective: Tensor


def rollouts_by_kind(layers: Sequence[CapturedLayer]) -> dict[str, Rollout]:
    """Return raw and effective attention rollout of every kind of self-attention, from the layers of a text."""
    maps: dict[str, list[Tensor]] = {}
    for layer in layers:
        relevant = effective_attention(
            layer.repeated_values,
            weights=_weights(layer),
            visible=layer.visible,
            output_projection=layer.site.output_projection.to(layer.values.device),
        )
        both = map(mean_over_heads, (relevant.weights, relevant.effective))
        maps.setdefault(layer.site.kind, []).append(torch.stack([*both]))
    return {
        kind: Rollout(*map(attention_rollout, torch.stack(pairs, 1)))
        for kind, pairs in maps.items()
    }


def final_rollouts(lens: Lens, item: Item) -> dict[str, Float[Tensor, "position input"]]:
    """Return rollouts to the last layer of a model with one stack, by name.

    ``raw`` and ``effective`` as `rollouts_by_kind`; ``norm``: the norms of what all heads pass on (`norm_weights`)
    instead of weights; ``alti``: the product of `alti_contributions`, left out where a layer is not its input plus
    attention that the next norm reads (layer scales, norms of the attention's output, parallel blocks). Of gated heads,
    whose gates differ by row, both are left out.

    Raises:
        UnsupportedModelError: As `self_attention`, or if the model does not have its layers in a list.
    """
    blocks = list(dict.fromkeys(layer_of(lens.body, site) for site in lens.sites(item)))
    norms = [norm for block in blocks for norm in block.modules() if "Norm" in type(norm).__name__]
    reads: list[list[Read]] = []

    def note(module: nn.Module, inputs: Inputs) -> None:
        states = first_input(inputs)
        if module in blocks:
            reads.append([])
        if reads and isinstance(states, Tensor) and states.ndim == 3:
            reads[-1].append((module, wide(states[0].detach())))

    lens.prove_once([item])
    with hooked([*blocks, *norms], note):
        layers = self_attention(lens, item)
    [rollout] = rollouts_by_kind(layers).values()
    rolled, passed, alti = {"raw": rollout.raw[-1], "effective": rollout.effective[-1]}, [], []
    for layer, read in zip(layers, reads, strict=False):
        if layer.site.gated:
            return rolled
        weights = _weights(layer)
        values = wide(layer.repeated_values)
        projected = values @ layer.site.output_projection.to(values)
        passed.append(mean_over_heads(norm_weights(weights, projected)[None]))
        alti.append(_contributions(read, layer, weights, projected, NOISE[lens.dtype]))
    rolled["norm"] = attention_rollout(torch.stack(passed))[-1]
    if all(shares is not None for shares in alti):
        rolled["alti"] = alti_rollout(torch.stack(alti))[-1]
    return rolled


def self_attention(lens: Lens, item: Item) -> list[CapturedLayer]:
    """Return the self-attention of every layer, with its weights, if nothing else mixes positions between layers.

    Raises:
        UnsupportedModelError: If some layers are no attention, or mix positions by more than attention.
    """
    [text] = lens.capture(item, weights=True)
    require_attention_alone(lens)
    return [layer for layer in text.layers if layer.site.kind != "cross"]


def require_attention_alone(lens: Lens) -> None:
    """Raise for a model with layers that mix positions by other means; its sites must have been read.

    Raises:
        UnsupportedModelError: If there are such layers.
    """
    reasons = [f"{', '.join(lens.other_layers)} have none"] if lens.other_layers else []
    if lens.mixing_layers:
        reasons.append(f"{', '.join(lens.mixing_layers)} mix positions by more than attention")
    if reasons:
        raise UnsupportedModelError(
            f"rollout multiplies the attention of all layers, and {'; '.join(reasons)}. "
            "Choose a model whose layers mix positions by attention alone, or use the audit, which needs one layer at "
            "a time."
        )


def _weights(layer: CapturedLayer) -> Float[Tensor, "head query key"]:
    return wide(cast(Tensor, layer.weights))


def _contributions(
    read: Sequence[Read],
    layer: CapturedLayer,
    weights: Float[Tensor, "head query key"],
    projected: Float[Tensor, "head key d_model"],
    limit: float,
) -> Float[Tensor, "query key"] | None:
    """Return ALTI's contributions to the output of one block; None if no norm reads that output as it is."""
    [(_, stream), *norms] = read
    output = stream + (weights @ projected).sum(0) + layer.site.output_bias.to(weights)
    norms = [(norm, inputs) for norm, inputs in norms if inputs.shape == stream.shape]
    # The first norms that read what the block gives, and what it adds to.
    after, before = (
        next((norm for norm, inputs in norms if relative(inputs, states) <= limit), None)
        for states in (output, stream)
    )
    if after is None or (before is None and not isinstance(after, nn.LayerNorm)):
        return None
    rows = []
    for query in range(weights.shape[1]):
        parts, total = (weights[:, query, :, None] * projected).sum(0), output[query]
        parts[query] += stream[query]
        # A block that begins with a norm of its input ends before the next one.
        if before is None:
            norm: Any = after
            scale = (total.var(unbiased=False) + norm.eps).rsqrt()
            scale = scale if norm.weight is None else scale * norm.weight.to(total)
            parts, total = ((part - part.mean(-1, keepdim=True)) * scale for part in (parts, total))
            # The shift of a norm is in the output only.
            total = total if norm.bias is None else total + norm.bias.to(total)
        rows.append(alti_contributions(parts, total))
    return torch.stack(rows)
