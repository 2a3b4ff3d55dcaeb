"""Where a model's attention happens: one site for each call of the attention function, in call order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel

from identilens.errors import InputError, UnsupportedModelError
from identilens.linalg import HALF
from identilens.linalg.factor import stored_rank
from identilens.models.affine import constant, drawn_like, is_linear, linear_weight
from identilens.models.following import (
    Candidate,
    LayerRun,
    Meeting,
    Route,
    Slot,
    capturing,
    routes_among,
    watched,
)
from identilens.models.gates import gated_candidates
from identilens.models.identity import checksums, folded
from identilens.models.interface import AttentionCall, evaluation_mode, intercept
from identilens.models.readers import adds_up
from identilens.models.sequences import Kind


@dataclass(frozen=True)
class Site:
    """One attention layer, as found in the forward pass.

    Attributes:
        layer: The model's own layer number if each layer of a kind has at most one attention. Otherwise it counts from
            0 within the kind, the language model's layers first, in call order (a shared module counts at each call).
        kind: ``encoder`` sees keys on both sides, ``decoder`` only earlier keys, ``cross`` another sequence.
        name: Path of the attention module in the model.
        projection: The linear map that is applied to the head outputs.
        zeros: A value of zero, on the device and in the precision of the values.
        added: Whether head outputs are added before they are projected. Otherwise they are concatenated.
        slot: The list of layers that contains the attention, and its number there; None outside of lists.
        positions_first: Whether the input of the projection has the axis of positions before the axis of texts.
        route: Layout of the product of weights and values, if the model computes attention by itself.
        gated: Whether head outputs are multiplied with a gate, a factor of their row, before they are projected.
        normed: Whether they are normalised before that. Such a norm counts as a gate, with the length as it is.
        mixer: Whether its layer mixes positions by more than attention (a state space or a convolution beside it).
        chooses: Whether the keys of each query are chosen by rank, so that ties depend on the number of keys.
    """

    layer: int
    kind: Kind
    name: str
    heads: int
    projection: nn.Module
    zeros: Float[Tensor, " d_v"]
    added: bool = False
    slot: Slot | None = None
    positions_first: bool = False
    route: Route | None = None
    chooses: bool = False
    mixer: bool = False
    gated: bool = False
    normed: bool = False

    @property
    def output_projection(self) -> Float[Tensor, "head d_v d_model"]:
        """Each head's block of the output projection, without its bias (Brunner: H, Bhardwaj: D)."""
        weight = linear_weight(self.projection, self._width, self.zeros)
        return (
            weight.expand(self.heads, -1, -1)
            if self.added
            else weight.unflatten(0, (self.heads, -1))
        )

    @property
    def stacked_rank(self) -> int:
        """The rank of the output projection as it is now, with the blocks of the heads stacked."""
        weight = self.output_projection.flatten(0, 1)
        bits = (*checksums(folded(weight.mT)), *weight.shape)
        return _RANKS.get(bits) or _RANKS.setdefault(bits, stored_rank(weight))

    @property
    def fixed_projection(self) -> Float[Tensor, "head d_v d_out"]:
        """What gives the output of a head at every row: `output_projection`, or the identity where a gate comes first.

        The output of a gated or normalised head is what it mixes, A V.
        """
        if not self.gated:
            return self.output_projection
        width = len(self.zeros)
        identity = torch.eye(width, max(width, len(self.output_bias))).to(self.zeros)
        return identity.expand(self.heads, -1, -1)

    @property
    def output_bias(self) -> Float[Tensor, " d_model"]:
        """The output projection of zero."""
        return constant(self.projection, self._width, self.zeros)

    @property
    def _width(self) -> int:
        return len(self.zeros) * (1 if self.added else self.heads)


_RANKS: dict[tuple, int] = {}
"""Ranks of weights by checksum and shape: weights can change unnoticed, and the rank of large ones takes seconds."""

Sites = tuple[Site, ...]
"""The attention layers of a model, in call order."""


def discover(model: PreTrainedModel, forward: Callable[[], Any]) -> Sites:
    """Return the sites of a forward pass on a short input of at least two tokens, in call order.

    The output projection of a site is the first linear map whose input equals the attention output, with heads
    concatenated or added. The outermost linear module around it is used, so that adapters are included. A model that
    changes the output before projecting it is refused, unless it is by a gate: a factor that depends on the row only.

    Raises:
        UnsupportedModelError: If the model never calls the attention interface, calls it from only
            some of its attention modules, or changes the attention output before projecting it.
        NumericalError: If the attention output has NaN or infinite entries.
    """
    names = {module: name for name, module in model.named_modules()}
    meetings = watched(model, _members(model), forward)
    if model.dtype in HALF and any(meeting.chooses for meeting in meetings):
        raise UnsupportedModelError(
            f"{type(model).__name__} chooses the keys of each query by rank, and in half precision a rounding chooses "
            'others. Load it with dtype="float32" (--dtype float32).'
        )
    sites, mixes = [], cache(partial(mixes_otherwise, model, meetings))
    for meeting, number in zip(meetings, _numbers(model, meetings), strict=True):
        site = _site(model, names[meeting.module], meeting, number)
        if not adds_up(model, site.projection, meeting, meetings, forward):
            raise UnsupportedModelError(
                f"the output of {type(meeting.module).__name__} is not the sum of its heads' outputs: beside the "
                f"output projection ({type(site.projection).__name__}) something else reads what the heads mix, or "
                "their sum is changed by more than a residual connection or norm. Choose a model of another family."
            )
        sites.append(replace(site, mixer=mixes(meeting.layer)))
    return tuple(sites)


def _site(model: PreTrainedModel, name: str, meeting: Meeting, layer: int) -> Site:
    reader = _linear(meeting.candidates)
    gated = reader is None and meeting.mixture is None
    if gated:
        with intercept(model, AttentionCall.run), torch.no_grad():
            reader = _linear(gated_candidates(meeting.call, meeting.inputs))
    if reader is None:
        why = meeting.loss
        if meeting.candidates:
            why = (
                f"{type(meeting.candidates[-1].module).__name__} reads the outputs of its heads and is no linear map "
                "up to rounding (8-bit activations, a norm by more than a length). Quantise weights alone, or choose "
                "a model of another family."
            )
        raise UnsupportedModelError(
            f"{type(meeting.module).__name__} changes the attention output before it is projected: {why}"
        )
    (_, heads, queries, _), value = meeting.call.query.shape, meeting.call.value
    first = reader.inputs.ndim == 3 and reader.inputs.shape[:2] == (queries, 1) != (1, 1)
    return Site(
        layer,
        meeting.kind,
        name,
        heads,
        reader.module,
        value.new_zeros(value.shape[-1]),
        reader.added,
        meeting.slot,
        first,
        meeting.route,
        meeting.chooses,
        gated=gated,
        normed=reader.normed,
    )


def _linear(candidates: Iterable[Candidate]) -> Candidate | None:
    return next((reader for reader in candidates if is_linear(reader.module, reader.inputs)), None)


def layer_of(model: nn.Module, site: Site) -> nn.Module:
    """Return the layer that contains a site.

    Raises:
        UnsupportedModelError: If the attention is in no list of layers.
    """
    if site.slot is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not have its layers in a list (attention found at {site.name})."
        )
    path, number = site.slot
    return [*model.get_submodule(path).children()][number]


def other_layers(
    model: nn.Module, sites: Sequence[Site]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return layers without attention beside layers with it, and those that mix by more, by path and class."""
    attention = {site.slot for site in sites if site.slot}
    mixers = {site.slot for site in sites if site.mixer}
    names = {
        (path, number): f"{path}.{number} ({type(layer).__name__})"
        for path in sorted({path for path, _ in attention})
        for number, layer in enumerate(model.get_submodule(path).children())
    }
    bare = tuple(name for slot, name in names.items() if slot not in attention)
    return bare, tuple(name for slot, name in names.items() if slot in mixers)


def _members(model: nn.Module) -> dict[nn.Module, Slot]:
    """Return the layers of a model: members of the outermost lists."""
    members: dict[nn.Module, Slot] = {}
    inside: tuple[str, ...] = ()
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or path.startswith(inside):
            continue
        # A list of stages, each a list of layers, is not called itself.
        if not any(isinstance(member, nn.ModuleList) for member in module.children()):
            inside = (*inside, f"{path}.")
            members |= {
                member: (path, number) for number, member in enumerate(module) if member is not None
            }
    return members


def _numbers(model: PreTrainedModel, meetings: Sequence[Meeting]) -> list[int]:
    """Return the number of each attention's layer, within its kind.

    Where a model has several lists of layers of a kind, those of the language model come first, so that its layers
    have the same numbers with a picture or a recording and without.
    """
    decoder = model.get_decoder()
    is_part = decoder is not model and getattr(decoder, "main_input_name", "") == "input_ids"
    text = {*decoder.modules()} if is_part else set()
    numbers = [0] * len(meetings)
    for kind in {meeting.kind for meeting in meetings}:
        order = [call for call, meeting in enumerate(meetings) if meeting.kind == kind]
        order.sort(key=lambda call: meetings[call].module not in text)
        known = {slot for call in order if (slot := meetings[call].slot)}
        alone = len(known) == len(order) and len({path for path, _ in known}) == 1
        for count, call in enumerate(order):
            slot = meetings[call].slot
            numbers[call] = slot[1] if alone and slot else count
    return numbers


def find_site(sites: Sites, layer: int, head: int, kind: Kind | None = None) -> int:
    """Return the index of the attention call that contains a head; layers count from 0 within their kind.

    Raises:
        InputError: If the model has no such head, or several kinds of attention and none is given.
    """
    kind, *more = kinds = _kinds(sites, kind)
    if more:
        raise InputError(
            f"the model has {', '.join(kinds)} attention; say which with kind=... (--kind)."
        )
    indices = {site.layer: index for index, site in enumerate(sites) if site.kind == kind}
    if layer not in indices:
        raise InputError(
            f"the model has attention in layers {sorted(indices)}; got {layer}. Layers count from 0."
        )
    heads = sites[indices[layer]].heads
    if not 0 <= head < heads:
        raise InputError(
            f"layer {layer} has heads 0 to {heads - 1}; got {head}. Heads count from 0."
        )
    return indices[layer]


def chosen_heads(
    sites: Sites,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    kind: Kind | None,
) -> Iterator[tuple[Site, int]]:
    """Yield the requested heads, in call order; None means all layers, heads or kinds.

    Raises:
        InputError: If the model lacks one of them.
    """
    for asked in _kinds(sites, kind):
        every = [site.layer for site in sites if site.kind == asked]
        for layer in every if layers is None else layers:
            site = sites[find_site(sites, layer, 0, asked)]
            for head in range(site.heads) if heads is None else heads:
                find_site(sites, layer, head, asked)
                yield site, head


def _kinds(sites: Sites, kind: Kind | None) -> list[Kind]:
    kinds: list[Kind] = list(dict.fromkeys(site.kind for site in sites))
    if kind is not None and kind not in kinds:
        raise InputError(f"the model has {', '.join(kinds)} attention; got kind {kind!r}.")
    return kinds if kind is None else [kind]


_PUSH = 4.0
"""How far one position is moved, in standard deviations of the layer's input."""
_ROUNDINGS = 8
"""Roundings by which other positions may change: experts that get other positions sum in another order."""


@torch.no_grad()
def mixes_otherwise(
    model: PreTrainedModel, meetings: Sequence[Meeting], run: LayerRun | None
) -> bool:
    """Whether a layer's output changes at other positions when one position of its input moves and attention does not.

    The outputs of its attention, among the ``meetings`` of the model, are held as they were. The values that it mixes
    must not change at other positions either. A layer with a convolution over positions mixes them, whatever one input
    shows.
    """
    if run is None:
        return False
    convolutions = nn.Conv1d, nn.Conv2d, nn.Conv3d
    for module in run.module.modules():
        convolves = isinstance(module, convolutions) and max(module.kernel_size) > 1
        if convolves or isinstance(module, nn.RNNBase):
            return True
    meetings = [meeting for meeting in meetings if meeting.layer is run]
    with evaluation_mode(model):
        held = [meeting.call.run() for meeting in meetings]
    routes = routes_among(meetings)
    states = _states(run.inputs)
    if states is None or not (axes := _positions(states, meetings[0].call)):
        return False
    values: list[Tensor] = []

    def hold(call: AttentionCall) -> Tensor:
        values.append(call.value)
        return held[call.index]

    def output(changed: Tensor) -> Tensor:
        args, kwargs = tree_map(lambda value: changed if value is states else value, run.inputs)
        with capturing(model, hold, routes):
            return _states(run.module(*args, **kwargs))

    moved = states.clone()
    first = moved.movedim(axes, tuple(range(len(axes))))
    middle = tuple(size // 2 for size in first.shape[: len(axes)])
    first[middle] += _PUSH * states.float().std().to(states) * drawn_like(first[middle])
    before, after = output(states), output(moved)
    if any(before.shape[axis] != states.shape[axis] for axis in axes):
        return True
    if _changes(before, after, axes, middle):
        return True
    # Values of windows, or of other positions than the layer's, are left out.
    sizes = tuple(states.shape[axis] for axis in axes)
    return any(
        _changes(value, other, (2,), middle)
        for value, other in zip(values, values[len(held) :], strict=False)
        if len(value) == 1 and (value.shape[2],) == sizes
    )


def _changes(before: Tensor, after: Tensor, axes: tuple[int, ...], middle: tuple[int, ...]) -> bool:
    """Whether anything changes at other positions than the one in the middle."""
    change = (
        (after - before).abs().movedim(axes, tuple(range(len(axes)))).flatten(len(axes)).amax(-1)
    )
    change[middle] = 0
    return float(change.max()) > _ROUNDINGS * torch.finfo(after.dtype).eps * float(
        after.abs().max()
    )


def _states(values: Any) -> Any:
    """Return the first tensor of hidden states among inputs or outputs of a layer."""
    tensors = (
        leaf
        for leaf in tree_leaves(values)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    )
    return next((leaf for leaf in tensors if leaf.ndim >= 3), None)


def _positions(states: Tensor, call: AttentionCall) -> tuple[int, ...]:
    """Return the axes of positions: beside a single text, of the size of the queries, or height and width."""
    if states.ndim == 3 and 1 in states.shape[:2]:
        return (1,) if states.shape[0] == 1 else (0,)
    same = [axis for axis, size in enumerate(states.shape[:-1]) if size == call.query.shape[2]]
    if len(same) == 1:
        return tuple(same)
    first, second, third = states.shape[-3:]
    if states.ndim != 4 or (first == second) == (second == third):
        return ()
    return (2, 3) if second == third else (1, 2)
