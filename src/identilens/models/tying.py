"""The parameters that make the queries and keys of a group of heads and nothing else, and what others would give."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from identilens.errors import InputError, UnsupportedModelError
from identilens.linalg import relative_tolerance
from identilens.linalg.decompositions import svd
from identilens.linalg.softmax import attention_logits, visible_softmax
from identilens.measures.attention.realisable.coordinates import Parameters, QueriesAndKeys
from identilens.measures.attention.realisable.softmax_map import SoftmaxMap
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.models.replaying import Replay
from identilens.models.threads import only_here

_MATCH, _ROUNDINGS = 1e-4, 32
"""A module run again gives the head's weights up to this error and so many roundings of the model's precision."""


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of a linear map with their biases, or entries of another parameter, and coordinates of them.

    Attributes:
        name: Path of the parameter in the attention module.
        entries: Their numbers among all entries of the parameters that move.
        own: The model's own entries.
        across: What makes coordinates from entries.
        back: What makes a change of the entries from one of the coordinates.
    """

    name: str
    entries: Int[Tensor, "row e"]
    own: Float[Tensor, "row e"]
    across: Float[Tensor, "e k"]
    back: Float[Tensor, "k e"]

    @cached_property
    def start(self) -> Float[Tensor, "row k"]:
        """Coordinates of the model's own entries."""
        return self.own @ self.across

    def move(self, coordinates: Float[Tensor, " coordinate"]) -> Float[Tensor, "row e"]:
        """Return the change of the entries that other coordinates make."""
        return (coordinates.view_as(self.start) - self.start) @ self.back


@dataclass(frozen=True)
class GroupParameters:
    """The parameters from which only the heads of a group take their queries and keys.

    The heads of a group share keys; a head with keys of its own is a group of one. Parameters that values, other heads
    or other layers use as well stay as they are: the latent vectors of keys and values, the turned part of the keys
    that all heads share (DeepSeek), norms of all heads' queries, tables of position biases that are handed on to other
    layers.

    Attributes:
        head: The head that is looked at.
        replay: Its attention module.
        values: The parameters with entries that move, by path.
        parts: What moves. Linear maps move as far as the inputs of the text reach, in coordinates in which their
            inputs, with a 1 for a bias, are orthonormal.
    """

    head: Head
    replay: Replay
    values: Mapping[str, Tensor]
    parts: Sequence[_Part]

    @cached_property
    def start(self) -> Float[Tensor, " coordinate"]:
        """Coordinates of the model's own parameters."""
        return torch.cat([part.start.flatten() for part in self.parts])

    def softmax_map(self) -> SoftmaxMap:
        """Return the attention of the group by its queries and keys if any can be made, else by coordinates."""
        head = self.head
        n, first = len(head.queries), head.head % head.group
        visible = head.visible
        if visible is None:
            visible = torch.ones(n, len(head.keys), dtype=torch.bool)
        heads = [replace(head, head=one) for one in _heads(head)]
        kept = [basis for one in heads for basis in one.projected.output_bases(n, head.visible)]
        rows = slice(first * n, (first + 1) * n)
        coordinates = Parameters(self.logits, self.start)
        if self.factors is not None:
            call = self._call(self.start)
            queries = call.query[0, _heads(head)].detach().flatten(0, 1)
            # The vectors of the head itself as the model computed them, in its own precision.
            queries[rows] = head.queries.double()
            bias = _bias(call, _heads(head))
            coordinates = QueriesAndKeys(queries, head.keys.double(), head.scaling, bias)
        return SoftmaxMap(coordinates, visible.repeat(head.group, 1), tuple(kept), rows)

    def logits(self, coordinates: Float[Tensor, " coordinate"]) -> Float[Tensor, "row key"]:
        """Return the logits of all heads of the group, with these coordinates."""
        return _logits(self._call(coordinates), _heads(self.head), self.head)

    def vectors(self, coordinates: Float[Tensor, " coordinate"]) -> Float[Tensor, " vector"]:
        """Return the queries of all heads of the group and their keys, one after the other, with these coordinates."""
        call, head = self._call(coordinates), self.head
        queries, keys = call.query[0, _heads(head)], call.key[0, head.head // head.group]
        return torch.cat([queries.flatten(), keys.flatten()])

    @cached_property
    def factors(self) -> Float[Tensor, " vector"] | None:
        """The diagonal of D Dᵀ, D the map from coordinates to queries and keys; None if these cannot be any.

        Linear maps of independent inputs (those of repeated tokens are not) are orthogonal in these coordinates, and
        what follows them turns vectors and multiplies them. The logits must be s Q Kᵀ + bias.
        """
        if self.head.softcap is not None or not self.head.bias_fixed:
            return None
        made, pull = self._linearised()
        draw = torch.randn(made.shape, generator=torch.Generator().manual_seed(0), dtype=made.dtype)
        factors, turned = (
            self.vectors(self.start + pull(one)).detach() - made
            for one in (torch.ones_like(made), draw)
        )
        fits = torch.allclose(
            turned, factors * draw, rtol=1e-9, atol=1e-9 * float(made.abs().max())
        )
        return factors if fits and bool((factors > 0).all()) else None

    def solved(self, vectors: Float[Tensor, " vector"]) -> Float[Tensor, " coordinate"]:
        """Return the coordinates nearest to the model's own that make these queries and keys.

        Raises:
            InputError: If none make them.
        """
        if self.factors is None:
            raise InputError(
                "no parameters of the layer make these queries and keys on this text: use a text of at most d_model "
                "tokens without repeated embeddings."
            )
        made, pull = self._linearised()
        return self.start + pull((vectors.to(made) - made) / self.factors)

    def parameters(self, coordinates: Float[Tensor, " coordinate"]) -> dict[str, Tensor]:
        """Return the parameters that these coordinates stand for, by path."""
        flat = torch.cat([value.flatten() for value in self.values.values()])
        for part, own in self._split(coordinates):
            flat = flat.index_add(0, part.entries.flatten(), part.move(own).flatten())
        pieces = flat.split([value.numel() for value in self.values.values()])
        return {
            name: piece.view_as(value)
            for (name, value), piece in zip(self.values.items(), pieces, strict=True)
        }

    def moved(self, coordinates: Float[Tensor, " coordinate"]) -> dict[str, float]:
        """Return ‖W' − W‖_F / ‖W‖_F of the entries that move, biases included, by path."""
        return {
            part.name: float(part.move(own).norm() / part.own.norm().clamp_min(1e-300))
            for part, own in self._split(coordinates)
        }

    @contextmanager
    def changed(self, lens: Lens, coordinates: Float[Tensor, " coordinate"]) -> Iterator[None]:
        """Run the model with these coordinates inside the context, in this thread only.

        Copies of the layers are used: the model's own parameters do not change.
        """
        attention = lens.body.get_submodule(self.head.site.name)
        copies: dict[nn.Module, nn.Module] = {}
        for name, new in self.parameters(coordinates).items():
            owner = attention.get_submodule(name.rpartition(".")[0])
            other = copies.setdefault(owner, copy.deepcopy(owner))
            with torch.no_grad():
                other.get_parameter(name.rpartition(".")[2]).copy_(new)
        with ExitStack() as hooks:
            for module, other in copies.items():
                hook = only_here(lambda _module, inputs, _output, other=other: other(*inputs))
                hooks.enter_context(module.register_forward_hook(hook))
            yield

    def _call(self, coordinates: Float[Tensor, " coordinate"]) -> AttentionCall:
        return self.replay.run(self.parameters(coordinates)).call

    def _linearised(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return the model's own queries and keys, and their derivative, transposed."""
        with torch.enable_grad():
            start = self.start.clone().requires_grad_()
            made = self.vectors(start)
        pull = partial(torch.autograd.grad, made, start, retain_graph=True)
        return made.detach(), lambda vectors: pull(vectors)[0]

    def _split(self, coordinates: Tensor) -> Iterator[tuple[_Part, Tensor]]:
        sizes = [part.start.numel() for part in self.parts]
        return zip(self.parts, coordinates.split(sizes), strict=True)


@contextmanager
def remade_head(
    lens: Lens,
    item: Item,
    head: Head,
    queries: Float[Tensor, "query d_k"],
    keys: Float[Tensor, "key d_k"],
) -> Iterator[None]:
    """Run the model with parameters that give a head with keys of its own others on a text, inside the context.

    Raises:
        UnsupportedModelError: As `group_parameters`.
        InputError: If no parameters give them.
    """
    group = group_parameters(lens, item, head)
    with group.changed(lens, group.solved(torch.cat([queries.flatten(), keys.flatten()]))):
        yield


def group_parameters(lens: Lens, item: Item, head: Head) -> GroupParameters:
    """Return the parameters from which only the heads of a group take their queries and keys, found by gradients.

    Raises:
        UnsupportedModelError: If there are none, several layers share them, or the module cannot be run again.
    """
    what = f"{head.site.kind} layer {head.site.layer}, head {head.head}"
    if sum(site.name == head.site.name for site in lens.sites(item)) > 1:
        raise UnsupportedModelError(
            f"{what}: several layers share its parameters, so all of them would change"
        )
    replay = Replay.of(lens, item, head.site)
    parameters = {
        name: one.detach().requires_grad_() for name, one in replay.module.named_parameters()
    }
    ran, heads = replay.run(parameters), _heads(head)
    parameters = {
        name: one for name, one in parameters.items() if name.rpartition(".")[0] in ran.inputs
    }
    others = [one for one in range(ran.call.query.shape[1]) if one not in heads]
    rest = [*ran.rest, ran.call.value, *([_logits(ran.call, others, head)] if others else [])]
    felt, used = _touched([_logits(ran.call, heads, head)], parameters), _touched(rest, parameters)
    owned = {
        name: _rows(replay.module, name, mine).any(1)
        & ~_rows(replay.module, name, used[name]).any(1)
        for name, mine in felt.items()
    }
    group = _group(head, replay, {name: one for name, one in owned.items() if one.any()})
    if not group.parts:
        raise UnsupportedModelError(
            f"{what}: no parameters make the queries and keys of its group and nothing else"
        )
    logits = _logits(ran.call, [head.head], head).detach()
    apart = visible_softmax(logits, head.visible) - head.attention
    if not bool((apart.abs() <= _MATCH + _ROUNDINGS * torch.finfo(head.queries.dtype).eps).all()):
        raise UnsupportedModelError(
            f"{what}: its attention module gives other weights when it is run alone"
        )
    return group


def _heads(head: Head) -> range:
    first = head.head - head.head % head.group
    return range(first, first + head.group)


def _logits(call: AttentionCall, heads: Sequence[int], head: Head) -> Float[Tensor, "row key"]:
    return torch.cat(
        [
            attention_logits(
                call.query[0, one],
                call.key[0, one // head.group],
                head.scaling,
                _bias(call, [one]),
                head.softcap,
            )
            for one in heads
        ]
    )


def _bias(call: AttentionCall, heads: Sequence[int]) -> Float[Tensor, "row key"] | None:
    bias = call.bias()
    if bias is None:
        return None
    shape = (call.query.shape[2], call.key.shape[2])
    biases = bias[0].expand(call.query.shape[1], *shape)
    return torch.cat([biases[one] for one in heads])


def _touched(outputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return which entries of parameters some outputs depend on."""
    generator = torch.Generator().manual_seed(0)
    total = sum(
        (one * torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one)).sum()
        for one in outputs
        if one.requires_grad
    )
    if not isinstance(total, Tensor):
        return {name: torch.zeros_like(one, dtype=torch.bool) for name, one in parameters.items()}
    gradients = torch.autograd.grad(
        total, list(parameters.values()), retain_graph=True, materialize_grads=True
    )
    return {name: one != 0 for name, one in zip(parameters, gradients, strict=True)}


def _group(head: Head, replay: Replay, owned: Mapping[str, Tensor]) -> GroupParameters:
    """Return coordinates of the rows of parameters that move."""
    module = replay.module
    values = {name: module.get_parameter(name).detach() for name in owned}
    inputs = replay.run({name: one.clone().requires_grad_() for name, one in values.items()}).inputs
    flat = torch.cat([torch.zeros(0).double(), *(value.flatten() for value in values.values())])
    numbers = torch.arange(len(flat)).split([value.numel() for value in values.values()])
    entries = {
        name: _rows(module, name, number.view_as(value))[owned[name]]
        for (name, value), number in zip(values.items(), numbers, strict=True)
    }
    joined, parts = set(), []
    for name, places in entries.items():
        path = name.rpartition(".")[0]
        bias = f"{path}.bias"
        across = back = torch.eye(places.shape[1], dtype=flat.dtype)
        if places.shape[1] > 1:  # a linear map
            given = inputs[path].flatten(0, -2)
            if bias in owned and torch.equal(owned[bias], owned[name]):
                joined.add(bias)
                places = torch.cat([places, entries[bias]], 1)
                given = torch.cat([given, torch.ones_like(given[:, :1])], 1)
            across, back = _reach(given)
        parts.append(_Part(name, places, flat[places], across, back))
    return GroupParameters(head, replay, values, [one for one in parts if one.name not in joined])


def _reach(inputs: Float[Tensor, "position d_in"]) -> tuple[Tensor, Tensor]:
    """Return V S and S⁻¹ Vᵀ of inputs U S Vᵀ: coordinates in which the inputs are the orthonormal U.

    Inputs that move, too, leave all coordinates as they are.
    """
    if inputs.requires_grad:
        same = torch.eye(inputs.shape[1], dtype=inputs.dtype)
        return same, same
    _, sigma, right = svd(inputs)
    rank = int((sigma > relative_tolerance(*inputs.shape) * sigma.max()).sum())
    return right[:rank].mT * sigma[:rank], right[:rank] / sigma[:rank, None]


def _rows(module: nn.Module, name: str, value: Tensor) -> Tensor:
    """Return a parameter's values with a row for each output of a linear map, or for each entry of another."""
    owner = module.get_submodule(name.rpartition(".")[0])
    if value.ndim == 2 and isinstance(owner, nn.Linear | Conv1D):
        return value.mT if isinstance(owner, Conv1D) else value
    return value.reshape(-1, 1)
