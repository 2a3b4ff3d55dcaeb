"""A lens on recorded attention: a model that computes it again."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from identilens.errors import InputError, UnsupportedModelError
from identilens.models.eager import eager_attention_forward
from identilens.models.lens import Lens
from identilens.models.recording import RecordedLayer, read_recording


class _ReplayConfig(PreTrainedConfig):
    model_type = "identilens_recording"


class _Attention(nn.Module):
    """Gives the recorded queries, keys and values of tokens to the attention that is computed."""

    is_causal = False

    def __init__(self, config: PreTrainedConfig, texts: Sequence[RecordedLayer]) -> None:
        super().__init__()
        self.config, first = config, texts[0]
        heads, groups = len(first.query), len(first.key)
        self.num_key_value_groups, self.factor = heads // groups, first.factor
        for name in ("query", "key", "value"):
            rows = torch.cat([getattr(one, name) for one in texts], 1).transpose(0, 1)
            self.register_buffer(name, rows.contiguous())
        self.masks = [one.visible() for one in texts]
        self.o_proj = nn.Linear(
            len(first.projection), first.projection.shape[1], first.bias is not None
        )
        self.o_proj.to(first.projection.dtype)
        self.o_proj.weight.data.copy_(first.projection.T)
        if first.bias is not None:
            self.o_proj.bias.data.copy_(first.bias)

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
        return self.o_proj(output.flatten(2))


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
        self.attention, self.starts = _Attention(config, texts), starts

    def forward(self, hidden_states: Tensor, ids: Int[Tensor, "text position"]) -> Tensor:
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
                torch.equal(one.projection, first[one.layer].projection)
                and one.factor == first[one.layer].factor
                for one in others
            )
            if not same:
                raise InputError(
                    f"{paths[text]} is of another model, or of other layers, than {paths[0]}. Read them one by one."
                )
        lengths = [len(one) for one in tokens]
        heads, width = len(layers[0][0].query), layers[0][0].projection.shape[1]
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
        self.paths = tuple(str(path) for path in paths)
        self.names = [name for one in tokens for name in one]
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        self.texts = [list(range(*ends)) for ends in pairwise(starts)]
        self.reader.names = lambda ids: tuple(self.names[one] for one in ids)
