"""The parameters that make the queries and keys of a group of heads and nothing else, and what others would give."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.functional import vjp
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map
from transformers import Cache, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from identilens.errors import UnsupportedModelError
from identilens.linalg import relative_tolerance
from identilens.linalg.decompositions import svd
from identilens.linalg.softmax import visible_softmax
from identilens.measures.attention.realisable.coordinates import (
    Parameters,
    Point,
    QueriesAndKeys,
)
from identilens.measures.attention.realisable.softmax_map import SoftmaxMap
from identilens.models.explaining import Exact, refuse_offloaded
from identilens.models.following import capturing
from identilens.models.heads import CapturedLayer, Head
from identilens.models.inputs import Item
from identilens.models.interface import SUM_ERROR, AttentionCall
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.threads import hooked
from identilens.models.windows import by_text

_MATCH, _ROUNDINGS = 1e-4, 32
"""A module run again gives the head's weights up to this error and so many roundings of the model's precision."""


@dataclass(frozen=True)
class Ran:
    """What an attention module computed.

    Attributes:
        layer: The heads of the site.
        rest: Its outputs after the first; with a gate also the first, through the gate alone.
        inputs: What the linear maps that were given got, by path.
    """

    layer: CapturedLayer
    rest: Sequence[Tensor]
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class Replay:
    """A copy in float64 of the attention module of a site, with its inputs on a text, in the processor's memory.

    Attributes:
        model: The model, which chooses the attention function.
        site: The site.
        module: The copy.
        inputs: Arguments of its forward method.
    """

    model: PreTrainedModel
    site: Site
    module: nn.Module
    inputs: tuple[tuple, dict]

    @classmethod
    def of(cls, lens: Lens, item: Item, site: Site) -> "Replay":
        """Return the module that computes a site, with what it was given on a text."""
        module = lens.body.get_submodule(site.name)
        refuse_offloaded(module)
        given: list[tuple[tuple, dict]] = []

        def keep(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            given.append((args, kwargs))

        with hooked([module], keep):
            lens.run([item], lambda call: call.attend()[0])
        shared = {
            id(value): value
            for value in vars(module).values()
            if not isinstance(value, nn.Module | dict)
        }
        copied = copy.deepcopy(module, shared).cpu().double().eval().requires_grad_(False)
        return cls(lens.body, site, copied, tree_map(_exact, given[0]))

    def run(self, maps: Mapping[str, Float[Tensor, "out in_1"]]) -> Ran:
        """Return all that the module computes with these linear maps, [W, b] by path."""
        layers: list[CapturedLayer] = []

        def mix(call: AttentionCall) -> Tensor:
            mixed = call.attend()[0]
            layers.append(CapturedLayer.of(call, self.site, mixed, None))
            return mixed.detach() if self.site.gated else mixed

        routes = {} if self.site.route is None else {0: self.site.route}
        with (
            changed_maps(self.module, maps) as inputs,
            Exact(),
            capturing(self.model, by_text(mix, 1), routes),
        ):
            output = self.module(*self.inputs[0], **self.inputs[1])
        first, *others = output if isinstance(output, tuple | list) else [output]
        tensors = (one for one in tree_leaves(others) if isinstance(one, Tensor))
        rest = [one for one in tensors if not _is_attention(one)]
        [layer] = layers
        return Ran(layer, [*rest, first] if self.site.gated else rest, inputs)


@contextmanager
def changed_maps(
    module: nn.Module, maps: Mapping[str, Float[Tensor, "out in_1"]]
) -> Iterator[Mapping[str, Tensor]]:
    """Compute linear maps of a module as [W, b] inside the context, in this thread only; yields what they get.

    The module's own parameters do not change. A map without a bias is W alone.
    """
    paths = {module.get_submodule(path): path for path in maps}
    inputs: dict[str, Tensor] = {}

    def remade(linear: nn.Module, args: tuple, _kwargs: dict, _output: Tensor) -> Tensor:
        path = paths[linear]
        inputs[path] = args[0]
        own = maps[path].to(args[0])
        return with_ones(args[0], own.shape[1]) @ own.mT

    with hooked(paths, after=remade):
        yield inputs


def with_ones(inputs: Float[Tensor, "*rows in"], width: int) -> Float[Tensor, "*rows in_1"]:
    """Return the inputs of a linear map, with a 1 for a bias where there is one."""
    return pad(inputs, (0, width - inputs.shape[-1]), value=1.0)


def _is_attention(output: Tensor) -> bool:
    """Whether an output of a module is its attention, which a model returns and does not go on with."""
    weights = output.ndim == 4 and output.is_floating_point() and bool((output >= 0).all())
    return weights and bool(((output.sum(-1) - 1).abs() <= SUM_ERROR).all())


def _exact(value: Any) -> Any:
    """Return an input in float64, without a cache; entries that hide keys hide them there too."""
    if not isinstance(value, Tensor):
        return None if isinstance(value, Cache) else value
    value = value.detach().cpu()
    if not value.is_floating_point():
        return value
    hidden = value <= torch.finfo(value.dtype).min / 2
    return value.double().masked_fill(hidden, torch.finfo(torch.float64).min)


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of a linear map [W, b], and coordinates of them.

    Attributes:
        path: Path of the map in the attention module.
        own: The model's own map, in float64.
        rows: Numbers of the rows that move.
        start: Point of the model's own rows.
        back: What makes a change of the rows from one of the coordinates.
    """

    path: str
    own: Float[Tensor, "out in_1"]
    rows: Int[Tensor, " row"]
    start: Float[Tensor, "row k"]
    back: Float[Tensor, "k in_1"]

    @classmethod
    def of(cls, path: str, own: Tensor, rows: Tensor, inputs: Tensor) -> "_Part":
        """Return coordinates of rows of a linear map in which its inputs U S Vᵀ, with a 1 for a bias, are U."""
        inputs = with_ones(inputs.flatten(0, -2), own.shape[1])
        _, sigma, right = svd(inputs)
        rank = int((sigma > relative_tolerance(*inputs.shape) * sigma.max()).sum())
        sigma, right = sigma[:rank], right[:rank]
        return cls(path, own, rows, own[rows] @ right.mT * sigma, right / sigma[:, None])


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
        parts: The rows of linear maps that move, as far as the inputs of the text reach, in coordinates in which these,
            with a 1 for a bias, are orthonormal.
    """

    head: Head
    replay: Replay
    parts: Sequence[_Part]

    @cached_property
    def start(self) -> Point:
        """Point of the model's own parameters."""
        return torch.cat([part.start.flatten() for part in self.parts])

    def softmax_map(self) -> SoftmaxMap:
        """Return the attention of the group by its queries and keys if any can be made, else by coordinates."""
        head, heads, (n, m) = self.head, _heads(self.head), self.head.attention.shape
        visible = torch.ones(n, m, dtype=torch.bool) if head.visible is None else head.visible
        bases = [replace(head, head=one).projected.output_bases(n, head.visible) for one in heads]
        first = n * heads.index(head.head)
        rows = slice(first, first + n)
        coordinates = Parameters(self.logits, self.start)
        if self.factors is not None:
            layer, bias = self._layer(self.start), None
            queries = layer.queries[heads].flatten(0, 1)
            # The vectors of the head itself as the model computed them, in its own precision.
            queries[rows] = head.queries.double()
            if layer.bias is not None:
                bias = layer.bias.expand(len(layer.queries), n, m)[heads].flatten(0, 1)
            start = torch.cat([queries.flatten(), head.keys.double().flatten()])
            coordinates = QueriesAndKeys(start, len(queries), head.d_k, head.scaling, bias)
        return SoftmaxMap(coordinates, visible.repeat(head.group, 1), sum(bases, ()), rows)

    def logits(self, coordinates: Point) -> Float[Tensor, "row key"]:
        """Return the logits of all heads of the group, with these coordinates."""
        return _logits(self._layer(coordinates), _heads(self.head))

    def vectors(self, coordinates: Point) -> Float[Tensor, " vector"]:
        """Return the queries of all heads of the group and their keys, one after the other, with these coordinates."""
        layer, heads = self._layer(coordinates), _heads(self.head)
        keys = layer.keys[self.head.head // self.head.group]
        return torch.cat([layer.queries[heads].flatten(), keys.flatten()])

    @cached_property
    def factors(self) -> Float[Tensor, " vector"] | None:
        """The diagonal of D Dᵀ, D the map from coordinates to queries and keys; None if these cannot be any.

        Linear maps of independent inputs (those of repeated tokens are not) are orthogonal in these coordinates, and
        what follows them turns vectors and multiplies them. The logits must be s Q Kᵀ + bias.
        """
        if self.head.softcap is not None or not self.head.bias_fixed:
            return None
        made = self.vectors(self.start)
        draw = torch.randn(made.shape, generator=torch.Generator().manual_seed(0), dtype=made.dtype)
        factors, drawn = (
            self.vectors(self.start + self._pull(one)) - made
            for one in (torch.ones_like(made), draw)
        )
        fits = (drawn - factors * draw).abs().max() <= 1e-9 * made.abs().max()
        return factors if fits and (factors > 0).all() else None

    def solved(self, point: Float[Tensor, " vector"]) -> Point:
        """Return the coordinates, the nearest to the model's own, that make a point of the `softmax_map`."""
        if self.factors is None:
            return point
        return self.start + self._pull((point - self.vectors(self.start)) / self.factors)

    def maps(self, coordinates: Point) -> dict[str, Float[Tensor, "out in_1"]]:
        """Return the linear maps [W, b] that these coordinates stand for, by path."""
        moves = self._moves(coordinates)
        return {part.path: part.own.index_add(0, part.rows, move) for part, move in moves}

    def moved(self, coordinates: Point) -> dict[str, float]:
        """Return ‖W' − W‖_F / ‖W‖_F of the rows that move, biases included, by path."""
        return {
            f"{part.path}.weight": float(move.norm() / part.own[part.rows].norm())
            for part, move in self._moves(coordinates)
        }

    def changed(self, lens: Lens, coordinates: Point) -> AbstractContextManager[object]:
        """Run the model with these coordinates inside the context, in this thread only."""
        attention = lens.body.get_submodule(self.head.site.name)
        return changed_maps(attention, self.maps(coordinates))

    def _layer(self, coordinates: Point) -> CapturedLayer:
        return self.replay.run(self.maps(coordinates)).layer

    def _pull(self, vectors: Float[Tensor, " vector"]) -> Point:
        """Return Dᵀ times some vectors."""
        return vjp(self.vectors, self.start, vectors)[1]  # pyright: ignore[reportReturnType]

    def _moves(self, coordinates: Point) -> Iterator[tuple[_Part, Tensor]]:
        """Yield each part with the change of its rows."""
        sizes = [part.start.numel() for part in self.parts]
        for part, new in zip(self.parts, coordinates.split(sizes), strict=True):
            yield part, (new.view_as(part.start) - part.start) @ part.back


def group_parameters(lens: Lens, item: Item, head: Head) -> GroupParameters:
    """Return the parameters from which only the heads of a group take their queries and keys, found by gradients.

    Raises:
        UnsupportedModelError: If there are none, several layers share them, or the module cannot be run again.
    """
    head, replay, heads = head.on_processor(), Replay.of(lens, item, head.site), _heads(head)
    if [site.name for site in lens.sites(item)].count(head.site.name) > 1:
        raise _unsupported(head, "several layers share its parameters, so all of them would change")
    # [W, b] with a row for each output; W without a bias.
    maps: dict[str, Tensor] = {}
    for path, linear in replay.module.named_modules():
        if isinstance(linear, nn.Linear | Conv1D):
            weight = linear.weight.mT if isinstance(linear, Conv1D) else linear.weight
            biases = () if linear.bias is None else (linear.bias[:, None],)
            maps[path] = torch.cat([weight, *biases], 1).requires_grad_()
    ran = replay.run(maps)
    others = [one for one in range(len(ran.layer.queries)) if one not in heads]
    rest = [*ran.rest, ran.layer.values, *(_logits(ran.layer, [one]) for one in others)]
    felt, used = (_touched(outputs, maps) for outputs in ([_logits(ran.layer, heads)], rest))
    parts = [
        _Part.of(path, own.detach(), rows, ran.inputs[path].detach())
        for (path, own), mine, theirs in zip(maps.items(), felt, used, strict=True)
        if len(rows := (mine & ~theirs).nonzero()[:, 0])
    ]
    if not parts:
        raise _unsupported(
            head, "no parameters make the queries and keys of its group and nothing else"
        )
    apart = visible_softmax(ran.layer.head(head.head).logits, head.visible) - head.attention
    if not bool((apart.abs() <= _MATCH + _ROUNDINGS * torch.finfo(head.queries.dtype).eps).all()):
        raise _unsupported(head, "its attention module gives other weights when it is run alone")
    return GroupParameters(head, replay, parts)


def _unsupported(head: Head, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{head.site.kind} layer {head.site.layer}, head {head.head}: {reason}"
    )


def _heads(head: Head) -> list[int]:
    first = head.head - head.head % head.group
    return list(range(first, first + head.group))


def _logits(layer: CapturedLayer, heads: Sequence[int]) -> Float[Tensor, "row key"]:
    return torch.cat([layer.head(one).logits for one in heads])


def _touched(outputs: Sequence[Tensor], maps: dict[str, Tensor]) -> list[Bool[Tensor, " row"]]:
    """Return which rows of linear maps some outputs depend on."""
    generator = torch.Generator().manual_seed(0)
    own = [*maps.values()]
    # Maps themselves are among the terms, so that there is always one with a gradient.
    terms = [0 * one.sum() for one in own]
    for one in outputs:
        draw = torch.randn(one.shape, generator=generator, dtype=torch.float64)
        terms.append((one * draw).sum())
    gradients = torch.autograd.grad(torch.stack(terms).sum(), own, retain_graph=True)
    return [(one != 0).any(1) for one in gradients]
