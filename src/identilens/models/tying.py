"""The parameters that make the queries and keys of a group of heads and nothing else, and what others would give."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.functional import vjp
from transformers.pytorch_utils import Conv1D

from identilens.errors import InputError, UnsupportedModelError
from identilens.linalg import relative_tolerance
from identilens.linalg.decompositions import svd
from identilens.linalg.softmax import visible_softmax
from identilens.measures.attention.realisable.coordinates import Parameters, QueriesAndKeys
from identilens.measures.attention.realisable.softmax_map import SoftmaxMap
from identilens.models.heads import CapturedLayer, Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.replaying import Replay
from identilens.models.threads import hooked

_MATCH, _ROUNDINGS = 1e-4, 32
"""A module run again gives the head's weights up to this error and so many roundings of the model's precision."""


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of a linear map with their biases, [W, b], and coordinates of them.

    Attributes:
        path: Path of the map in the attention module.
        linear: The map, in float64.
        rows: Numbers of the rows that move.
        own: The model's own entries of these rows.
        start: Coordinates of these.
        back: What makes a change of the entries from one of the coordinates.
    """

    path: str
    linear: nn.Linear | Conv1D
    rows: Int[Tensor, " row"]
    own: Float[Tensor, "row e"]
    start: Float[Tensor, "row k"]
    back: Float[Tensor, "k e"]


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
    def start(self) -> Float[Tensor, " coordinate"]:
        """Coordinates of the model's own parameters."""
        return torch.cat([part.start.flatten() for part in self.parts])

    def softmax_map(self) -> SoftmaxMap:
        """Return the attention of the group by its queries and keys if any can be made, else by coordinates."""
        head, (n, m) = self.head, self.head.attention.shape
        visible = torch.ones(n, m, dtype=torch.bool) if head.visible is None else head.visible
        heads, first = _heads(head), head.head % head.group
        kept = [
            basis
            for one in heads
            for basis in replace(head, head=one).projected.output_bases(n, head.visible)
        ]
        rows = slice(first * n, (first + 1) * n)
        coordinates = Parameters(self.logits, self.start)
        if self.factors is not None:
            layer = self._layer(self.start)
            queries = layer.queries[heads].flatten(0, 1)
            # The vectors of the head itself as the model computed them, in its own precision.
            queries[rows] = head.queries.double()
            bias = layer.bias
            if bias is not None:
                bias = bias.expand(len(layer.queries), n, m)[heads].flatten(0, 1)
            coordinates = QueriesAndKeys(queries, head.keys.double(), head.scaling, bias)
        return SoftmaxMap(coordinates, visible.repeat(head.group, 1), tuple(kept), rows)

    def logits(self, coordinates: Float[Tensor, " coordinate"]) -> Float[Tensor, "row key"]:
        """Return the logits of all heads of the group, with these coordinates."""
        return _logits(self._layer(coordinates), _heads(self.head))

    def vectors(self, coordinates: Float[Tensor, " coordinate"]) -> Float[Tensor, " vector"]:
        """Return the queries of all heads of the group and their keys, one after the other, with these coordinates."""
        layer, heads = self._layer(coordinates), _heads(self.head)
        keys = layer.head(self.head.head).keys
        return torch.cat([layer.queries[heads].flatten(), keys.flatten()])

    @cached_property
    def factors(self) -> Float[Tensor, " vector"] | None:
        """The diagonal of D Dᵀ, D the map from coordinates to queries and keys; None if these cannot be any.

        Linear maps of independent inputs (those of repeated tokens are not) are orthogonal in these coordinates, and
        what follows them turns vectors and multiplies them. The logits must be s Q Kᵀ + bias.
        """
        if self.head.softcap is not None or not self.head.bias_fixed:
            return None
        made = self.vectors(self.start).detach()
        draw = torch.randn(made.shape, generator=torch.Generator().manual_seed(0), dtype=made.dtype)
        factors, drawn = (
            self.vectors(self.start + self._pull(one)) - made
            for one in (torch.ones_like(made), draw)
        )
        limit = 1e-9 * float(made.abs().max())
        fits = torch.allclose(drawn, factors * draw, rtol=1e-9, atol=limit)
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
        made = self.vectors(self.start)
        return self.start + self._pull((vectors.to(made) - made) / self.factors)

    def parameters(self, coordinates: Float[Tensor, " coordinate"]) -> dict[str, Tensor]:
        """Return the parameters that these coordinates stand for, by path."""
        named = {}
        for part, move in self._moves(coordinates):
            linear = part.linear
            moves = move.new_zeros(linear.weight.shape[isinstance(linear, Conv1D)], move.shape[1])
            moves = moves.index_add(0, part.rows, move)
            if linear.bias is not None:
                named[f"{part.path}.bias"] = linear.bias + moves[:, -1]
                moves = moves[:, :-1]
            named[f"{part.path}.weight"] = linear.weight + _by_row(linear, moves)
        return named

    def moved(self, coordinates: Float[Tensor, " coordinate"]) -> dict[str, float]:
        """Return ‖W' − W‖_F / ‖W‖_F of the rows that move, biases included, by path."""
        return {
            f"{part.path}.weight": float(move.norm() / part.own.norm())
            for part, move in self._moves(coordinates)
        }

    @contextmanager
    def changed(self, lens: Lens, coordinates: Float[Tensor, " coordinate"]) -> Iterator[None]:
        """Run the model with these coordinates inside the context, in this thread only.

        Copies of the layers are used: the model's own parameters do not change.
        """
        attention = lens.body.get_submodule(self.head.site.name)
        named, copies = self.parameters(coordinates), dict[nn.Module, nn.Module]()
        for part in self.parts:
            module = attention.get_submodule(part.path)
            other = copies[module] = copy.deepcopy(module)
            state = {leaf: named[f"{part.path}.{leaf}"] for leaf in other.state_dict()}
            other.load_state_dict(state)

        def remade(module: nn.Module, args: tuple, kwargs: dict, _output: Tensor) -> Tensor:
            return copies[module](*args, **kwargs)

        with hooked(copies, after=remade):
            yield

    def _layer(self, coordinates: Float[Tensor, " coordinate"]) -> CapturedLayer:
        return self.replay.run(self.parameters(coordinates)).layer

    def _pull(self, vectors: Float[Tensor, " vector"]) -> Float[Tensor, " coordinate"]:
        """Return Dᵀ times some vectors."""
        _, pulled = vjp(self.vectors, self.start, vectors)
        return cast(Tensor, pulled)

    def _moves(self, coordinates: Float[Tensor, " coordinate"]) -> Iterator[tuple[_Part, Tensor]]:
        """Yield each part with the change of its rows."""
        sizes = [part.start.numel() for part in self.parts]
        for part, new in zip(self.parts, coordinates.split(sizes), strict=True):
            yield part, (new.view_as(part.start) - part.start) @ part.back


def group_parameters(lens: Lens, item: Item, head: Head) -> GroupParameters:
    """Return the parameters from which only the heads of a group take their queries and keys, found by gradients.

    Raises:
        UnsupportedModelError: If there are none, several layers share them, or the module cannot be run again.
    """
    what = f"{head.site.kind} layer {head.site.layer}, head {head.head}"
    replay = Replay.of(lens, item, head.site)
    if len(replay.sites) > 1:
        raise UnsupportedModelError(
            f"{what}: several layers share its parameters, so all of them would change"
        )
    linear = {
        path: module
        for path, module in replay.module.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }
    weights = [_by_row(one, one.weight).clone().requires_grad_() for one in linear.values()]
    named = zip(linear.items(), weights, strict=True)
    ran = replay.run({f"{path}.weight": _by_row(one, weight) for (path, one), weight in named})
    heads = _heads(head)
    others = [one for one in range(len(ran.layer.queries)) if one not in heads]
    rest = [*ran.rest, ran.layer.values, *(_logits(ran.layer, [one]) for one in others)]
    felt = _touched([_logits(ran.layer, heads)], weights)
    used = _touched(rest, weights)
    parts = [
        _part(path, linear[path], rows, ran.inputs[path].detach())
        for path, mine, theirs in zip(linear, felt, used, strict=True)
        if len(rows := (mine & ~theirs).nonzero()[:, 0])
    ]
    if not parts:
        raise UnsupportedModelError(
            f"{what}: no parameters make the queries and keys of its group and nothing else"
        )
    apart = visible_softmax(ran.layer.head(head.head).logits, head.visible) - head.attention
    if not bool((apart.abs() <= _MATCH + _ROUNDINGS * torch.finfo(head.queries.dtype).eps).all()):
        raise UnsupportedModelError(
            f"{what}: its attention module gives other weights when it is run alone"
        )
    return GroupParameters(head, replay, parts)


def _heads(head: Head) -> list[int]:
    first = head.head - head.head % head.group
    return list(range(first, first + head.group))


def _logits(layer: CapturedLayer, heads: Sequence[int]) -> Float[Tensor, "row key"]:
    return torch.cat([layer.head(one).logits for one in heads])


def _touched(outputs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """Return which rows of weights some outputs depend on."""
    generator = torch.Generator().manual_seed(0)
    moving = [one for one in outputs if one.requires_grad]
    draws = [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in moving]
    # Weights themselves stand among the outputs, so that there is always one with a gradient.
    gradients = torch.autograd.grad(
        [*moving, *weights], weights, [*draws, *map(torch.zeros_like, weights)], retain_graph=True
    )
    return [(one != 0).any(1) for one in gradients]


def _part(path: str, linear: nn.Linear | Conv1D, rows: Tensor, inputs: Tensor) -> _Part:
    """Return coordinates of rows of a linear map in which its inputs U S Vᵀ, with a 1 for a bias, are U."""
    own, inputs = _by_row(linear, linear.weight)[rows], inputs.flatten(0, -2)
    if linear.bias is not None:
        own = torch.cat([own, linear.bias[rows, None]], 1)
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    _, sigma, right = svd(inputs)
    rank = int((sigma > relative_tolerance(*inputs.shape) * sigma.max()).sum())
    sigma, right = sigma[:rank], right[:rank]
    return _Part(path, linear, rows, own, own @ right.mT * sigma, right / sigma[:, None])


def _by_row(linear: nn.Module, weight: Tensor) -> Tensor:
    """Return a weight with a row for each output, or such a one as the linear map has it."""
    return weight.mT if isinstance(linear, Conv1D) else weight
