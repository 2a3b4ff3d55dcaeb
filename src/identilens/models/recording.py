"""Attention that another engine computed, recorded layer by layer, and a lens on it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from identilens.errors import InputError, OutputFolderError, UnsupportedModelError
from identilens.models.eager import eager_attention_forward
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.models.proof import NOISE

SUFFIX = ".safetensors"
"""Ending of the name of a recording."""
_FORMAT = "identilens recording 1"
_MOST_TEXT = 2**28
"""Largest size of the description of a recording, in characters."""
_MOST = 2**16
"""No model has as many layers."""

_MASKS = ("full", "causal")


@dataclass(frozen=True, kw_only=True)
class RecordedLayer:
    """Self-attention of one layer on one text, as an engine computed it.

    Attributes:
        query: Queries after positions are applied, (head, position, d_k).
        key: Keys after positions are applied, (group, position, d_k); groups divide heads.
        value: Values, (group, position, d_v).
        mixed: Weights times values, (position, head, d_v), before the output projection.
        projection: Output projection, (head · d_v, d_model), heads in order: x W, without its bias.
        output: What the layer's attention adds, (position, d_model): mixed · projection + bias.
        bias: Bias of the output projection, (d_model).
        scaling: Factor of the products of queries and keys; 1 / √d_k by default.
        mask: Which keys a query sees: full, causal, or True in a (position, position) tensor.
        layer: Number of the layer in the model.

    Examples:
        >>> import identilens as idl, torch
        >>> q, k, v = torch.randn(3, 2, 5, 4)
        >>> mixed = (torch.softmax(q @ k.mT / 2, -1) @ v).transpose(0, 1)
        >>> parts = {"query": q, "key": k, "value": v, "mixed": mixed, "projection": torch.eye(8)}
        >>> layer = idl.RecordedLayer(**parts, output=mixed.flatten(1), mask="full")
        >>> layer.check("layer 0")
        >>> layer.factor, layer.visible().all().item()
        (0.5, True)
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mixed: Tensor
    projection: Tensor
    output: Tensor
    bias: Tensor | None = None
    scaling: float | None = None
    mask: str | Tensor = "causal"
    layer: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        named = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        # Layers may share a tensor, such as a mask, which a file may not.
        return {
            f"{self.layer}.{name}": value.clone(memory_format=torch.contiguous_format)
            for name, value in named.items()
        }

    def facts(self) -> dict[str, Any]:
        """Return what is no tensor."""
        return {
            "layer": self.layer,
            "scaling": self.factor,
            "mask": self.mask if isinstance(self.mask, str) else "own",
        }

    @property
    def factor(self) -> float:
        """Factor of the products of queries and keys."""
        return self.query.shape[-1] ** -0.5 if self.scaling is None else self.scaling

    def visible(self) -> Bool[Tensor, "position position"]:
        """Return which keys each query sees."""
        if isinstance(self.mask, Tensor):
            return self.mask.bool()
        every = torch.ones(self.query.shape[1], self.query.shape[1], dtype=torch.bool)
        return every.tril() if self.mask == "causal" else every

    def _fits(self, tensors: Mapping[str, Tensor]) -> bool:
        if [self.query.ndim, self.value.ndim, self.output.ndim] != [3, 3, 2]:
            return False
        (heads, n, d_k), (groups, _, d_v), d_model = (
            self.query.shape,
            self.value.shape,
            self.output.shape[1],
        )
        sizes = {
            "query": (heads, n, d_k),
            "key": (groups, n, d_k),
            "value": (groups, n, d_v),
            "mixed": (n, heads, d_v),
            "projection": (heads * d_v, d_model),
            "output": (n, d_model),
            "bias": (d_model,),
            "mask": (n, n),
        }
        given = {name: tuple(one.shape) for name, one in tensors.items()}
        kinds = {one.dtype for name, one in tensors.items() if name != "mask"}
        known = isinstance(self.mask, Tensor) or self.mask in _MASKS
        same = known and len(kinds) == 1 and kinds <= NOISE.keys()
        return (
            same
            and heads % max(groups, 1) == 0 < n
            and all(sizes[name] == size for name, size in given.items())
        )

    def check(self, place: str) -> None:
        """Check that sizes fit, A V = z, and z W + b is the output, up to the rounding of the precision.

        Raises:
            InputError: Naming what does not fit.
        """
        tensors = {name: one for name, one in vars(self).items() if isinstance(one, Tensor)}
        if not self._fits(tensors):
            shapes = {name: (tuple(one.shape), one.dtype) for name, one in tensors.items()}
            raise InputError(f"{place}: the sizes of its tensors do not fit each other: {shapes}.")
        hidden = torch.zeros(self.visible().shape).masked_fill(~self.visible(), -torch.inf)
        query, key, value = (one[None].double() for one in (self.query, self.key, self.value))
        shown = hidden[None, None]
        mixed = eager_attention_forward(nn.Module(), query, key, value, shown, self.factor)[0][0]
        output = self.mixed.double().flatten(1) @ self.projection.double()
        output = output if self.bias is None else output + self.bias.double()
        limit = NOISE[self.value.dtype]
        for what, found, given in (
            ("weights times values do not give its mixed values", mixed, self.mixed),
            ("mixed values times the projection do not give its output", output, self.output),
        ):
            rows = (found - given.double()).flatten(1).norm(dim=1)
            share = float(
                rows.max() / given.double().flatten(1).norm(dim=1).max().clamp_min(1e-300)
            )
            if not share <= limit:
                raise InputError(
                    f"{place}: {what}: a row is {share:.2g} of the largest one away (limit {limit:g}). Record queries "
                    "and keys after positions are applied, the projection as x W, and the scaling and mask in use."
                )


def write_recording(
    path: str | Path,
    layers: Sequence[RecordedLayer],
    tokens: Sequence[str],
    *,
    model: str = "recorded",
) -> None:
    """Write a recording of one text as a safetensors file, after checking that it is consistent.

    Args:
        path: The file, ending in .safetensors.
        layers: The layers that were recorded, in the order of the model.
        tokens: The token at each position.
        model: Name of the model.

    Raises:
        InputError: If layers do not fit each other or the tokens, or weights times values are not what was recorded.
        OutputFolderError: If the file cannot be written.

    Examples:
        >>> import identilens as idl, pathlib, tempfile, torch
        >>> q, k, v = torch.randn(3, 2, 5, 4)
        >>> mixed = (torch.softmax(q @ k.mT / 2, -1) @ v).transpose(0, 1)
        >>> parts = {"query": q, "key": k, "value": v, "mixed": mixed, "projection": torch.eye(8)}
        >>> layer = idl.RecordedLayer(**parts, output=mixed.flatten(1), mask="full")
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "text.safetensors"
        >>> idl.write_recording(file, [layer], ["a", "b", "c", "d", "e"])
        >>> idl.load(file).texts
        [[0, 1, 2, 3, 4]]
    """
    _check(layers, tokens, "")
    facts = {
        "format": _FORMAT,
        "model": model,
        "tokens": list(tokens),
        "layers": [one.facts() for one in layers],
    }
    tensors = {name: one for layer in layers for name, one in layer.tensors().items()}
    file = Path(path)
    temporary = file.with_name(f".{file.name}.part")
    try:
        save_file(tensors, temporary, metadata={"identilens": json.dumps(facts)})
        temporary.replace(file)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise OutputFolderError(
            f"{path} cannot be written: {error}. Choose another place, or make its folder."
        ) from error


def _check(layers: Sequence[RecordedLayer], tokens: Sequence[str], place: str) -> None:
    """Check that layers are in order, fit the tokens, and are consistent."""
    numbers = [one.layer for one in layers]
    if not layers or numbers != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < _MOST:
        raise InputError(
            f"{place}expected layers in the order of the model, from 0 to {_MOST - 1}; got numbers {numbers[:8]}."
        )
    for one in layers:
        one.check(f"{place}layer {one.layer}")
        if one.query.shape[1] != len(tokens):
            raise InputError(
                f"{place}layer {one.layer} has {one.query.shape[1]} positions, and there are {len(tokens)} tokens."
            )


def record(lens: Lens, text: Any, path: str | Path) -> None:
    """Write what a model's self-attention computes on one text as a recording, to be looked at without the model.

    Args:
        lens: The model.
        text: A text or token ids.
        path: The file, ending in .safetensors.

    Raises:
        UnsupportedModelError: For attention with sinks, soft caps, biases of positions, windows of a picture, or cross
            attention.

    Examples:
        >>> import identilens as idl, tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "text.safetensors"
        >>> idl.record(idl.load("bundled-decoder"), "Snow fell on the harbour.", file)
        >>> recording = idl.load(file)
        >>> idl.audit(recording, recording.texts, certain_rows=1).table.shape[0]
        32
    """
    item = lens.read([text])[0]
    sites, layers = lens.sites(item), []

    def keep(call: AttentionCall) -> Tensor:
        site, output = sites[call.index], call.run()
        others = {name for name in _OTHER_TERMS if call.arguments.get(name) is not None}
        if (
            site.kind == "cross"
            or call.windows > 1
            or call.has_sink
            or call.bias is not None
            or others
        ):
            raise UnsupportedModelError(
                f"{site.kind} layer {site.layer} of {lens.name} computes more than a softmax of queries and keys "
                f"({', '.join(sorted(others)) or 'a bias, a sink, windows or another sequence'}), which a recording "
                "does not hold. Audit the model itself."
            )
        seen = call.visible()
        mask: str | Tensor = "full" if seen is None else seen[0]
        if isinstance(mask, Tensor) and torch.equal(mask, torch.ones_like(mask).tril()):
            mask = "causal"
        mixed = output[0].detach()
        projection = site.output_projection.flatten(0, 1).to(mixed)
        bias = site.output_bias.to(mixed)
        layers.append(
            RecordedLayer(
                query=call.query[0].detach(),
                key=call.key[0].detach(),
                value=call.value[0].detach(),
                mixed=mixed,
                projection=projection,
                bias=bias,
                output=mixed.flatten(1) @ projection + bias,
                scaling=float(call.arguments.get("scaling") or call.query.shape[-1] ** -0.5),
                mask=mask,
                layer=site.layer,
            )
        )
        return output

    lens.run([item], keep)
    write_recording(path, layers, next(iter(item.tokens.values())), model=lens.name)


_OTHER_TERMS = ("softcap", "s_aux", "position_bias")


def read_recording(path: Path) -> tuple[list[RecordedLayer], list[str], str]:
    """Return the layers, the tokens and the model's name of a recording.

    Raises:
        InputError: If the file is no recording, or is not consistent.
    """
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("identilens", "")
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        facts = json.loads(text) if len(text) <= _MOST_TEXT else {}
        if facts.get("format") != _FORMAT:
            raise InputError(
                f"{path} is no recording of attention. Write one with identilens.write_recording."
            )
        tokens, model = [str(one) for one in facts["tokens"]], str(facts["model"])
        layers = []
        for one in facts["layers"]:
            number = int(one["layer"])
            start = f"{number}."
            own = {
                name.removeprefix(start): value
                for name, value in tensors.items()
                if name.startswith(start)
            }
            mask = {} if one["mask"] == "own" else {"mask": one["mask"]}
            layers.append(RecordedLayer(**own, **mask, scaling=float(one["scaling"]), layer=number))
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise InputError(f"{path} is damaged ({error}). Record the text again.") from error
    _check(layers, tokens, f"{path}, ")
    return layers, tokens, model


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
