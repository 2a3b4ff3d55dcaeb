"""Rollouts of one text: how much of each input token reaches each position, layer after layer, by several weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.errors import UnsupportedModelError
from identilens.measures.attention.effective import effective_attention
from identilens.measures.mixing.alti import alti_contributions, alti_rollout
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads, norm_weights
from identilens.models.capture import Collector
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.layout import layer_at
from identilens.models.lens import Lens
from identilens.models.outputs import relative
from identilens.models.proof import NOISE
from identilens.models.threads import first_input, hooked


class Rollout(NamedTuple):
    """Rollouts of one kind of self-attention, of the weights as they are and of effective attention."""

    raw: Tensor
    effective: Tensor


def text_rollouts(lens: Lens, item: Item) -> dict[str, Rollout]:
    """Return raw and effective attention rollout of every kind of self-attention.

    Raises:
        UnsupportedModelError: If some layers are no attention, or mix positions by more than attention.
    """
    return _by_kind(self_attention(lens, item))


def _by_kind(layers: Sequence[CapturedLayer]) -> dict[str, Rollout]:
    kinds: dict[str, list[CapturedLayer]] = {}
    for layer in layers:
        kinds.setdefault(layer.site.kind, []).append(layer)
    return {
        kind: Rollout(
            *(
                attention_rollout(torch.stack([mean_over_heads(of(one)) for one in own]))
                for of in (_weights, _effective)
            )
        )
        for kind, own in kinds.items()
    }


def final_rollouts(lens: Lens, item: Item) -> dict[str, Float[Tensor, "position input"]]:
    """Return rollouts to the last layer of a model with one stack, by name.

    ``raw`` and ``effective`` as `text_rollouts`; ``norm``: the norms of what all heads pass on (`norm_weights`) instead
    of weights; ``alti``: the product of `alti_contributions`, left out where a layer is not its input plus attention
    that the next norm reads (layer scales, norms of the attention's output, parallel blocks). Of gated heads, whose
    gates differ by row, both are left out.

    Raises:
        UnsupportedModelError: As `text_rollouts`, or if the model does not have its layers in a list.
    """
    blocks = _Blocks(lens, item)
    lens.prove_once([item])
    with blocks.watched():
        layers = self_attention(lens, item)
    [rollout] = _by_kind(layers).values()
    rolled, norms, alti = {"raw": rollout.raw[-1], "effective": rollout.effective[-1]}, [], []
    for number, layer in enumerate(layers):
        if layer.site.gated:
            return rolled
        weights = _weights(layer)
        values = layer.values.double().repeat_interleave(len(layer.queries) // len(layer.values), 0)
        projected = values @ layer.site.output_projection.to(values)
        norms.append(mean_over_heads(norm_weights(weights, projected)[None]))
        alti.append(blocks.contributions(number, layer, weights, projected))
    rolled["norm"] = attention_rollout(torch.stack(norms))[-1]
    if all(shares is not None for shares in alti):
        rolled["alti"] = alti_rollout(torch.stack(alti))[-1]
    return rolled


def self_attention(lens: Lens, item: Item) -> list[CapturedLayer]:
    """Return the self-attention of every layer, with its weights, if nothing else mixes positions between layers.

    Raises:
        UnsupportedModelError: If some layers are no attention, or mix positions by more than attention.
    """
    sites = lens.sites(item)
    require_attention_alone(lens)
    collector = Collector(sites, [item], weights=True)
    lens.run([item], collector)
    return [layer for layer in collector.layers[0] if layer.site.kind != "cross"]


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
    return cast(Tensor, layer.weights).double()


def _effective(layer: CapturedLayer) -> Float[Tensor, "head query key"]:
    group = len(layer.queries) // len(layer.values)
    return effective_attention(
        layer.values.repeat_interleave(group, 0),
        weights=cast(Tensor, layer.weights),
        visible=layer.visible,
        output_projection=layer.site.output_projection.to(layer.values.device),
    ).effective


class _Blocks:
    """The attention blocks of a model: the residual stream that each adds to, and the norm that follows."""

    def __init__(self, lens: Lens, item: Item) -> None:
        self._lens = lens
        # What each call of a layer reads, and what its norms read.
        self._blocks: list[list[tuple[nn.Module, Tensor]]] = []
        places = dict.fromkeys(site.place for site in lens.sites(item) if site.place)
        self._layers = [layer_at(lens.body, place) for place in places]
        if not places:
            raise UnsupportedModelError(
                f"{type(lens.body).__name__} does not have its layers in a list."
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record each call of each layer inside the context."""

        def note(module: nn.Module, args: tuple, kwargs: dict) -> None:
            states = first_input(args, kwargs)
            if module in self._layers:
                self._blocks.append([])
            if self._blocks and isinstance(states, Tensor) and states.ndim == 3:
                self._blocks[-1].append((module, states[0].detach().double()))

        modules = (module for layer in self._layers for module in layer.modules())
        norms = [module for module in modules if "Norm" in type(module).__name__]
        with hooked([*self._layers, *norms], note):
            yield

    def contributions(
        self, number: int, layer: CapturedLayer, weights: Tensor, projected: Tensor
    ) -> Float[Tensor, "query key"] | None:
        """Return ALTI's contributions to the output of one block; None if no norm reads that output as it is."""
        [(_, stream), *norms] = self._blocks[number]
        bias = layer.site.output_bias.to(weights)
        output = stream + (weights @ projected).sum(0) + bias
        after, before = self._reader(norms, output), self._reader(norms, stream)
        if after is None or (before is None and not isinstance(after, nn.LayerNorm)):
            return None
        # A block that begins with a norm of its input ends before the next one.
        norm = after if before is None else None
        rows = []
        for query in range(weights.shape[1]):
            parts = (weights[:, query, :, None] * projected).sum(0)
            parts[query] += stream[query]
            rows.append(alti_contributions(*_normed(norm, parts, output[query])))
        return torch.stack(rows)

    def _reader(
        self, norms: Sequence[tuple[nn.Module, Tensor]], states: Tensor
    ) -> nn.Module | None:
        """Return the first of some norms that reads some states."""
        limit = NOISE[self._lens.dtype]
        read = (pair for pair in norms if pair[1].shape == states.shape)
        return next((norm for norm, given in read if relative(given, states) <= limit), None)


def _normed(norm: nn.Module | None, parts: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Return parts and output after a layer norm's linear part at this output; its shift is in the output only."""
    if not isinstance(norm, nn.LayerNorm):
        return parts, output
    scale = (output.var(unbiased=False) + norm.eps).rsqrt() * (
        1.0 if norm.weight is None else norm.weight.to(output)
    )
    shift = 0.0 if norm.bias is None else norm.bias.to(output)
    centred = [one - one.mean(-1, keepdim=True) for one in (parts, output)]
    return centred[0] * scale, centred[1] * scale + shift
