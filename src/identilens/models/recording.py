"""Attention that another engine computed, recorded layer by layer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from identilens.errors import InputError, OutputFolderError, UnsupportedModelError
from identilens.models.eager import eager_attention_forward
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.models.placing import to_processor
from identilens.models.proof import NOISE

SUFFIX = ".safetensors"
"""Ending of the name of a recording."""
_FORMAT = "identilens recording 1"
_MOST_TEXT = 2**28
"""Largest size of the description of a recording, in characters."""
_MOST = 2**16
"""No model has as many layers."""

_MASKS = ("full", "causal")
SUM = 1e-5
"""Largest distance of a row's sum from 1, which rounding to half precision exceeds."""


@dataclass(frozen=True, kw_only=True)
class RecordedLayer:
    """Self-attention of one layer on one text, as an engine computed it.

    Either queries and keys are recorded, or the weights that were made of them, by whatever way.

    Attributes:
        value: Values, (group, position, d_v).
        mixed: Weights times values, (row, head, d_v), before the output projection; every position is a row by default.
        projection: Output projection, (head · d_v, d_model), heads in order: x W, without its bias.
        output: What the layer's attention adds, (row, d_model): mixed · projection + bias, or (mixed ∘ gate) ·
            projection + bias.
        query: Queries after positions are applied, (head, position, d_k).
        key: Keys after positions are applied, (group, position, d_k); groups divide heads.
        weights: Attention after softmax, (head, row, position), in float32 or float64, in place of queries and keys.
        rows: The positions of the queries that are recorded, in order, (row); with weights alone.
        sink: Whether weights have a sink, so that rows sum to less than 1.
        bias: Bias of the output projection, (d_model).
        gate: What multiplies the mixed values before they are projected, (row, head, d_v), in families that do so.
        normed: Whether the gate divides by a length of what is mixed, as a norm of heads does.
        scaling: Factor of the products of queries and keys; 1 / √d_k by default.
        mask: Which keys a query sees: full, causal, or True in a (row, position) tensor.
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

    value: Tensor
    mixed: Tensor
    projection: Tensor
    output: Tensor
    query: Tensor | None = None
    key: Tensor | None = None
    weights: Tensor | None = None
    rows: Tensor | None = None
    sink: bool = False
    bias: Tensor | None = None
    gate: Tensor | None = None
    normed: bool = False
    scaling: float | None = None
    mask: str | Tensor = "causal"
    layer: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: one for name, one in vars(self).items() if isinstance(one, Tensor)}

    def facts(self) -> dict[str, Any]:
        """Return what is no tensor."""
        return {
            "layer": self.layer,
            "scaling": self.factor,
            "sink": self.sink,
            "normed": self.normed,
            "mask": self.mask if isinstance(self.mask, str) else "own",
        }

    @property
    def factor(self) -> float:
        """Factor of the products of queries and keys; 1 without them."""
        if self.scaling is None:
            return 1.0 if self.query is None else self.query.shape[-1] ** -0.5
        return self.scaling

    @property
    def unit_gate(self) -> Tensor:
        """The gate of mixed values, 1 without one; of a norm that of their direction, with their length in it."""
        gate = torch.ones_like(self.mixed) if self.gate is None else self.gate
        return (
            gate * torch.linalg.vector_norm(self.mixed, dim=-1, keepdim=True)
            if self.normed
            else gate
        )

    @property
    def places(self) -> list[int]:
        """The positions of the rows."""
        return list(range(self.value.shape[1])) if self.rows is None else self.rows.tolist()

    def visible(self) -> Bool[Tensor, "row position"]:
        """Return which keys each row sees."""
        if isinstance(self.mask, Tensor):
            return self.mask.bool()
        positions, rows = torch.arange(self.value.shape[1]), torch.tensor(self.places)
        causal = positions <= rows[:, None]
        return causal if self.mask == "causal" else torch.ones_like(causal)

    def is_like(self, other: "RecordedLayer") -> bool:
        """Return whether both can be of one layer of a model, on two texts."""
        tensors = [(self.projection, other.projection)]
        if self.bias is not None and other.bias is not None:
            tensors.append((self.bias, other.bias))
        facts = [
            (
                {**one.facts(), "mask": None},
                one.weights is None,
                one.bias is None,
                one.gate is None,
                one.mixed.shape[1:],
                len(one.value),
            )
            for one in (self, other)
        ]
        return facts[0] == facts[1] and all(torch.equal(*both) for both in tensors)

    def _fits(self, tensors: Mapping[str, Tensor]) -> bool:
        if [self.value.ndim, self.mixed.ndim, self.output.ndim] != [3, 3, 2]:
            return False
        (groups, n, d_v), (rows, heads, _), d_model = (
            self.value.shape,
            self.mixed.shape,
            self.output.shape[1],
        )
        d_k = None if self.query is None else self.query.shape[-1]
        sizes = {
            "query": (heads, n, d_k),
            "key": (groups, n, d_k),
            "weights": (heads, rows, n),
            "rows": (rows,),
            "value": (groups, n, d_v),
            "mixed": (rows, heads, d_v),
            "gate": (rows, heads, d_v),
            "projection": (heads * d_v, d_model),
            "output": (rows, d_model),
            "bias": (d_model,),
            "mask": (rows, n),
        }
        given = {name: tuple(one.shape) for name, one in tensors.items()}
        own = {"mask", "weights", "rows"}
        kinds = {one.dtype for name, one in tensors.items() if name not in own}
        forms = {"query", "key", "weights"} & given.keys()
        placed = self.rows is None or (
            self.rows.dtype == torch.int64
            and bool((self.rows.diff() > 0).all() & (self.rows >= 0).all() & (self.rows < n).all())
        )
        return (
            (isinstance(self.mask, Tensor) or self.mask in _MASKS)
            and len(kinds) == 1
            and kinds <= NOISE.keys()
            and (forms == {"weights"} or (forms == {"query", "key"} and not self.sink))
            and (self.weights is None or self.weights.dtype in (torch.float32, torch.float64))
            and (rows == n if self.rows is None else forms == {"weights"} and placed)
            and heads % max(groups, 1) == 0 < n
            and rows > 0
            and (self.gate is not None or not self.normed)
            and all(sizes[name] == size for name, size in given.items())
        )

    def _mixed(self, place: str) -> Float[Tensor, "row head d_v"]:
        """Return weights times values, in float64."""
        if self.query is not None and self.key is not None:
            shown = torch.zeros(self.visible().shape).masked_fill(~self.visible(), -torch.inf)
            query, key, value = (one[None].double() for one in (self.query, self.key, self.value))
            mask, module = shown[None, None], nn.Module()
            return eager_attention_forward(module, query, key, value, mask, self.factor)[0][0]
        weights = cast(Tensor, self.weights).double()
        sums, unseen = weights.sum(-1), weights.masked_fill(self.visible(), 0.0)
        wrong = (sums - 1).clamp_min(0.0) if self.sink else (sums - 1).abs()
        # Not a number is no smaller than the limit.
        if not float(wrong.max()) <= SUM or bool((weights < 0).any() | (unseen != 0).any()):
            raise InputError(
                f"{place}: its weights are no attention: expected none below 0 or on a hidden key, and rows that sum "
                f"to 1 within {SUM:g}{' or to less' if self.sink else ''}; the sums are {float(sums.min()):.6g} to "
                f"{float(sums.max()):.6g}. Record weights before they are rounded to half precision, with the mask in "
                "use, and with sink=True where a sink takes its part."
            )
        group = len(weights) // len(self.value)
        return (weights @ self.value.double().repeat_interleave(group, 0)).transpose(0, 1)

    def check(self, place: str) -> None:
        """Check that sizes fit, rows are attention, A V = z, and z W + b is the output, up to the precision's rounding.

        Raises:
            InputError: Naming what does not fit.
        """
        tensors = self.tensors()
        if not self._fits(tensors):
            shapes = {name: (tuple(one.shape), one.dtype) for name, one in tensors.items()}
            mask = self.mask if isinstance(self.mask, str) else "a tensor"
            raise InputError(
                f"{place}: its tensors do not fit each other: expected sizes as RecordedLayer names them, one "
                "precision, queries and keys or else weights in single or double precision (a sink, or chosen rows in "
                f"rising order, with weights only), the gate of a norm, and the mask to be a tensor or one of "
                f"{', '.join(_MASKS)}; got the mask {mask}, sink {self.sink}, normed {self.normed}, and {shapes}."
            )
        mixed = self._mixed(place)
        output = _added(self.mixed.double(), self.projection.double(), self.bias, self.gate)
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
                record = "the projection as x W"
                if self.weights is None:
                    record = f"queries and keys after positions are applied, {record}, and the scaling and mask in use"
                raise InputError(
                    f"{place}: {what}: a row is {share:.2g} of the largest one away (limit {limit:g}). Record {record}."
                )


def _added(mixed: Tensor, projection: Tensor, bias: Tensor | None, gate: Tensor | None) -> Tensor:
    """Return what mixed values add: gated, where there is a gate, and projected."""
    passed = mixed if gate is None else mixed * gate
    return passed.flatten(1) @ projection + (0 if bias is None else bias)


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
    layers = list(map(to_processor, layers))
    _check(layers, tokens, "")
    facts = {
        "format": _FORMAT,
        "model": model,
        "tokens": list(tokens),
        "layers": [one.facts() for one in layers],
    }
    # Layers may share a tensor, such as a mask, which a file may not.
    tensors = {
        f"{layer.layer}.{name}": one.clone(memory_format=torch.contiguous_format)
        for layer in layers
        for name, one in layer.tensors().items()
    }
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
        if one.value.shape[1] != len(tokens):
            raise InputError(
                f"{place}layer {one.layer} has {one.value.shape[1]} positions, and there are {len(tokens)} tokens."
            )


def record(
    lens: Lens,
    text: Any,
    path: str | Path,
    *,
    weights: bool = False,
    rows: Sequence[int] | None = None,
) -> None:
    """Write what a model's self-attention computes on one text as a recording, to be looked at without the model.

    Of attention that is a softmax of queries and keys alone, these are recorded; of attention with sinks, soft caps or
    biases of positions, the weights.

    Args:
        lens: The model.
        text: A text or token ids.
        path: The file, ending in .safetensors.
        weights: Record weights in place of queries and keys: n² numbers a head.
        rows: Record the weights of these positions' queries alone; all by default.

    Raises:
        InputError: For rows that the text does not have.
        UnsupportedModelError: For attention with windows of a picture, or cross attention; for attention in half
            precision with sinks.

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
    places = None if rows is None else sorted(set(rows))
    if places is not None and not (places and 0 <= places[0] <= places[-1] < item.length):
        raise InputError(f"expected rows from 0 to {item.length - 1}, at least one; got {places}.")

    def keep(call: AttentionCall) -> Tensor:
        site, output = sites[call.index], call.run()
        if site.kind == "cross" or call.windows > 1:
            raise UnsupportedModelError(
                f"{site.kind} layer {site.layer} of {lens.name} has windows or another sequence, which a "
                "recording does not hold. Audit the model itself."
            )
        more = call.has_sink or call.bias is not None or call.arguments.get("softcap") is not None
        form: dict[str, Any] = {"query": call.query[0], "key": call.key[0]}
        part, mixed, gate = call, output[0].detach(), call.gate
        gate = None if gate is None else gate[0].to(mixed)
        if weights or more or places is not None:
            part = call if places is None else call.rows(places)
            heads = CapturedLayer.of(part, site, *part.attend()).heads
            exact = torch.promote_types(mixed.dtype, torch.float32)
            form = {
                "weights": torch.stack([head.attention.to(exact) for head in heads]),
                "sink": call.has_sink,
            }
        if places is not None:
            mixed, form["rows"] = mixed[places], torch.tensor(places)
            gate = None if gate is None else gate[places]
        projection = site.output_projection.flatten(0, 1).to(mixed)
        bias = site.output_bias.to(mixed)
        layers.append(
            RecordedLayer(
                value=call.value[0].detach(),
                mixed=mixed,
                projection=projection,
                bias=bias,
                gate=gate,
                normed=site.normed,
                output=_added(mixed, projection, bias, gate),
                scaling=float(call.arguments.get("scaling") or call.query.shape[-1] ** -0.5),
                mask=_mask(part.visible(), places),
                layer=site.layer,
                **form,
            )
        )
        return output

    lens.run([item], keep)
    write_recording(path, layers, next(iter(item.tokens.values())), model=lens.name)


def _mask(seen: Bool[Tensor, "1 row position"] | None, places: list[int] | None) -> str | Tensor:
    """Return which keys the rows at some places see, by its name where it has one."""
    if seen is None:
        return "full"
    positions = torch.arange(seen.shape[2], device=seen.device)
    ends = positions if places is None else positions[places]
    return "causal" if torch.equal(seen[0], positions <= ends[:, None]) else seen[0]


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
            rest: dict[str, Any] = {name: bool(one.get(name)) for name in ("sink", "normed")}
            rest["scaling"] = float(one["scaling"])
            layers.append(RecordedLayer(**own, **mask, **rest, layer=number))
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
