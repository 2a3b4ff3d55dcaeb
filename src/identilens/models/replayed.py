"""A lens on recorded attention: a model that computes it again."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from identilens.errors import InputError, JoinedTextsError, UnsupportedModelError
from identilens.models.eager import eager_attention_forward
from identilens.models.inputs import Item
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.proof import ONE_TEXT
from identilens.models.recording import RecordedLayer, read_recording
from identilens.models.threads import attribute


class _ReplayConfig(PreTrainedConfig):
    model_type = "identilens_recording"


class _Attention(nn.Module):
    """Gives the recorded queries, keys and values of tokens to the attention that is computed."""

    is_causal = False

    def __init__(self, config: PreTrainedConfig, texts: Sequence[RecordedLayer]) -> None:
        super().__init__()
        self.config, first = config, texts[0]
        self.num_key_value_groups = first.mixed.shape[1] // len(first.value)
        self.factor = first.factor
        for name in ("query", "key", "value"):
            rows = torch.cat([getattr(one, name) for one in texts], 1).transpose(0, 1)
            self.register_buffer(name, rows.contiguous())
        self.register_buffer("gate", torch.cat([one.unit_gate for one in texts]))
        self.normed = first.normed
        self.masks = [one.visible() for one in texts]
        self.o_proj = _projection(first)

    def forward(
        self, hidden_states: Tensor, ids: Int[Tensor, "text position"], seen: Tensor
    ) -> Tensor:
        query, key, value = (
            self.get_buffer(name)[ids].transpose(1, 2) for name in ("query", "key", "value")
        )
        # The bias of values is not known; what a layer would make of zeros is taken to be zero.
        value = value * hidden_states.any()
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            str(self.config._attn_implementation), eager_attention_forward
        )
        output, _ = attend(self, query, key, value, seen, scaling=self.factor)
        return self.o_proj(_gated(output, self.get_buffer("gate")[ids], self.normed).flatten(2))


def _gated(output: Tensor, gate: Tensor, normed: bool) -> Tensor:
    """Return what heads mix after its gate; a norm leaves nothing of its length."""
    if normed:
        output = normalize(output, dim=-1, eps=torch.finfo(output.dtype).tiny)
    return output * gate


def _projection(layer: RecordedLayer) -> nn.Linear:
    """Return the output projection of a layer."""
    width, d_model = layer.projection.shape
    linear = nn.Linear(width, d_model, layer.bias is not None).to(layer.projection.dtype)
    linear.weight.data.copy_(layer.projection.T)
    if layer.bias is not None:
        linear.bias.data.copy_(layer.bias)
    return linear


class _WeightsAttention(nn.Module):
    """Gives recorded weights and what they mix, of one text at a time; its queries and keys are positions.

    Attributes:
        rows: By text, the row of each position whose weights were recorded.
        masks: By text, which keys each row sees; None where every key is seen, or those before.
    """

    def __init__(self, config: PreTrainedConfig, texts: Sequence[RecordedLayer]) -> None:
        super().__init__()
        self.config, self.o_proj, self.texts = config, _projection(texts[0]), texts
        self.sinks = torch.zeros(texts[0].mixed.shape[1]) if texts[0].sink else None
        self.rows = [{place: row for row, place in enumerate(one.places)} for one in texts]
        self.starts = [0, *accumulate(one.value.shape[1] for one in texts)]
        named = {one.mask if isinstance(one.mask, str) else "own" for one in texts}
        self.is_causal = named == {"causal"}
        self.masks = None if named in ({"causal"}, {"full"}) else [one.visible() for one in texts]
        for text, one in enumerate(texts):
            # The output of a row that was not recorded is its own value: nobody sees its weights.
            mixed = one.value.repeat_interleave(one.mixed.shape[1] // len(one.value), 0).mT
            mixed = mixed.permute(2, 0, 1).clone()
            mixed[one.places] = one.mixed
            gate = torch.ones_like(mixed)
            gate[one.places] = one.unit_gate
            parts = {"weights": one.weights, "value": one.value, "mixed": mixed, "gate": gate}
            for name, tensor in parts.items():
                self.register_buffer(f"{name}_{text}", tensor)

    def forward(self, hidden_states: Tensor, ids: Int[Tensor, "text position"]) -> Tensor:
        if len(ids) > 1:
            raise JoinedTextsError(f"Recorded weights belong to one text each. {ONE_TEXT}")
        text = bisect_right(self.starts, int(ids[0, 0])) - 1
        [places], one = ids - self.starts[text], self.texts[text]
        known = torch.tensor([place in self.rows[text] for place in places.tolist()])
        mask = None
        if self.masks is not None:
            mask = torch.eye(len(places), dtype=torch.bool)
            rows = [self.rows[text][place] for place in places[known].tolist()]
            mask[known] = self.masks[text][rows][:, places.cpu()]
            mask = mask[None, None].to(ids.device)
        value = self.get_buffer(f"value_{text}")[None, :, places]
        queries, keys = (
            places.double()[:, None].expand(1, size, -1, 1)
            for size in (one.mixed.shape[1], len(one.value))
        )
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            str(self.config._attn_implementation), _recorded_output
        )
        named = {"scaling": 1.0, "s_aux": self.sinks, "text": text}
        value = value * hidden_states.any()
        recorded = torch.nonzero(known).flatten()
        output, _ = attend(self, queries, keys, value, mask, recorded=recorded, **named)
        output = _gated(output, self.get_buffer(f"gate_{text}")[places], one.normed)
        return self.o_proj(output.flatten(2).to(value.dtype))

    def recorded_weights(
        self,
        _module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: Any,
        text: int,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return what recorded weights mix, and the weights: the layer's eager attention.

        Raises:
            InputError: For rows that were not recorded, or a part of a text.
        """
        rows, whole = self.rows[text], self.texts[text].value.shape[1]
        if key.shape[2] != whole:
            raise InputError(
                f"weights were recorded of a text of {whole} tokens; got {key.shape[2]} of them. Give the whole text."
            )
        places = query[0, 0, :, 0].long().tolist()
        if missing := [place for place in places if place not in rows]:
            raise InputError(
                f"the row at position {missing[0]} was not recorded; the rows at {[*rows][:16]} were. Ask for these "
                "alone, with queries=… (--queries), in a study that has them; whole maps need every row."
            )
        weights = self.get_buffer(f"weights_{text}")[:, [rows[place] for place in places]][None]
        value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return (weights.to(value.dtype) @ value).transpose(1, 2), weights


def _recorded_output(
    module: _WeightsAttention, query: Tensor, key: Tensor, *_: Any, text: int, **__: Any
) -> tuple[Tensor, Tensor]:
    """Return what was recorded that the heads mix, which is there for every row, and no weights."""
    mixed = module.get_buffer(f"mixed_{text}")[query[0, 0, :, 0].long()][None]
    return mixed, key.new_zeros(()).expand(*query.shape[:3], key.shape[2])


class NotRecorded(nn.Module):
    """A layer that was not recorded."""

    def forward(self, hidden_states: Tensor, ids: Tensor) -> Tensor:
        """Return what comes in."""
        return hidden_states


class _Layer(nn.Module):
    def __init__(
        self, config: PreTrainedConfig, texts: Sequence[RecordedLayer], starts: Tensor
    ) -> None:
        super().__init__()
        kind = _Attention if texts[0].weights is None else _WeightsAttention
        self.attention, self.starts = kind(config, texts), starts

    def forward(self, hidden_states: Tensor, ids: Int[Tensor, "text position"]) -> Tensor:
        if isinstance(self.attention, _WeightsAttention):
            return hidden_states + self.attention(hidden_states, ids)
        masks, n = self.attention.masks, ids.shape[1]
        seen = torch.zeros(len(ids), 1, n, n, dtype=torch.bool)
        for row, first in enumerate(ids[:, 0].tolist()):
            text = int(torch.searchsorted(self.starts, first, right=True)) - 1
            place, size = first - int(self.starts[text]), min(n, len(masks[text]))
            seen[row, 0, :size, :size] = masks[text][place : place + size, place : place + size]
            # Rows of padding see something, so that they are no division by zero.
            seen[row, 0, size:, 0] = True
        seen = seen.to(ids.device)
        hidden = torch.zeros_like(seen, dtype=hidden_states.dtype)
        hidden = hidden.masked_fill(~seen, torch.finfo(hidden.dtype).min)
        return hidden_states + self.attention(hidden_states, ids, hidden)


class Replay(PreTrainedModel):
    """Computes recorded attention again: the model of a `Recording`. It has no hidden states of its own."""

    config_class = _ReplayConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(
        self,
        config: PreTrainedConfig,
        texts: Sequence[Sequence[RecordedLayer]],
        lengths: Sequence[int],
    ) -> None:
        super().__init__(config)
        starts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
        by_number = [{one.layer: one for one in layers} for layers in texts]
        self.layers = nn.ModuleList(
            _Layer(config, [text[number] for text in by_number], starts)
            if number in by_number[0]
            else NotRecorded()
            for number in range(max(by_number[0]) + 1)
        )

    def get_input_embeddings(self) -> nn.Module:
        """Return nothing: a recording has no embeddings."""
        raise UnsupportedModelError(_ATTENTION_ONLY)

    def forward(
        self,
        input_ids: Int[Tensor, "text position"],
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_others: Any,
    ) -> BaseModelOutput:
        """Return the sum of what the layers' attention adds."""
        if output_hidden_states:
            raise UnsupportedModelError(_ATTENTION_ONLY)
        first = next(one for one in self.layers if isinstance(one, _Layer)).attention
        width, dtype = first.o_proj.out_features, first.o_proj.weight.dtype
        states = torch.ones(*input_ids.shape, width, dtype=dtype, device=input_ids.device)
        for layer in self.layers:
            states = layer(states, input_ids)
        return BaseModelOutput(last_hidden_state=states)


_ATTENTION_ONLY = (
    "a recording has attention alone: no hidden states, predictions or embeddings, and nothing can be put back into "
    'the model. Ask for what rests on the output of heads or layers: audit with effects="none" (--effects none), '
    "certify with the outcome head or layer, rollout."
)


class Recording(Lens):
    """A lens on attention that was recorded. Audits, certificates of heads and layers, and rollout take it.

    Args:
        paths: Files of one model, one for each text; see `write_recording`.

    Attributes:
        texts: What to pass as texts: all that were recorded.

    Raises:
        InputError: If files are no recordings, are not consistent, or are not of one model.

    Examples:
        >>> import identilens as idl, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "text.safetensors"
        >>> idl.record(idl.load("bundled-decoder"), "Snow fell.", file)
        >>> recording = idl.Recording(file)
        >>> recording.name, len(recording.texts[0])
        ('bundled-decoder', 6)
    """

    def __init__(self, *paths: str | Path) -> None:
        read = [read_recording(Path(path)) for path in paths]
        layers, tokens, names = zip(*read, strict=True)
        first = {one.layer: one for one in layers[0]}
        for text, others in enumerate(layers):
            same = [one.layer for one in others] == list(first) and all(
                one.is_like(first[one.layer]) for one in others
            )
            if not same:
                raise InputError(
                    f"{paths[text]} is of another model, or of other layers, than {paths[0]}. Read them one by one."
                )
        lengths = [len(one) for one in tokens]
        heads, width = layers[0][0].mixed.shape[1], layers[0][0].projection.shape[1]
        config = _ReplayConfig()
        config.update(
            {
                "vocab_size": sum(lengths),
                "hidden_size": width,
                "num_hidden_layers": max(first) + 1,
                "num_attention_heads": heads,
            }
        )
        config._attn_implementation = "eager"
        super().__init__(Replay(config, layers, lengths).eval(), name=names[0])
        self._joins_texts = any(one.weights is not None for one in first.values())
        self.paths = tuple(str(path) for path in paths)
        self.names = [name for one in tokens for name in one]
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        self.texts = [list(range(*ends)) for ends in pairwise(starts)]
        self.reader.names = lambda ids: tuple(self.names[one] for one in ids)

    def _discovered(self, item: Item) -> tuple[Site, ...]:
        # Where heads go shows in their outputs, which are there for every row and any part of a text.
        kept = [one for one in self.model.modules() if isinstance(one, _WeightsAttention)]
        with attribute(kept, "recorded_weights", partial(_recorded_output)):
            return super()._discovered(item)
