"""Observation of one forward pass: attention by the interface or by the model itself, and its output projections."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import Cache, PreTrainedModel

from identilens.errors import UnsupportedModelError
from identilens.linalg.checks import check_finite
from identilens.models.affine import is_basic, is_pointwise
from identilens.models.following.follower import (
    Follower,
    Mixed,
    Mixture,
    Outputs,
    holds_distributions,
    turned,
)
from identilens.models.following.routes import Route, read_route
from identilens.models.interface import AttentionCall, intercept
from identilens.models.sequences import Kind
from identilens.models.threads import Inputs, hooked

Slot = tuple[str, int]
"""A layer: path of its list in the model, and its number in the list."""

_LOST = {
    "add": "adds a term beyond weights times values before a linear map (relative values, which differ by query; the "
    "stream itself, where a layer has no output projection), so that no projection of one value per key gives its "
    "output",
    "mul": "multiplies them by what differs from query to query (a norm, or a gate where attention is the model's "
    "own), so that row i of a map has an output projection of its own that cannot be read",
    "cat": "puts them beside something else (features of convolutions, or windows or pictures of which each is a call "
    "of its own: one picture of one window can be read) before projecting",
    "einsum": "multiplies them by a parameter of its own, which is no layer that can be read",
    "setitem": "writes them among something else (attention of a few queries among means of the values)",
    "split": "shares their rows out among experts, each with a projection of its own, so that a head has no single one",
    "linear": "projects them along another axis than that of the heads' outputs (attention between channels), or by a "
    "layer of its own making, so that a head has no output projection that can be read",
    "a product": "multiplies them by another matrix before the output projection",
}


@dataclass(frozen=True, eq=False)
class LayerRun:
    """One run of a layer, with its inputs but for caches of earlier tokens."""

    slot: Slot
    module: nn.Module
    inputs: Inputs


@dataclass(frozen=True)
class Candidate:
    """A module whose input is the heads' outputs, concatenated or added, and normalised where a norm comes before."""

    module: nn.Module
    inputs: Tensor
    added: bool = False
    normed: bool = False
    mixed: Mixed | None = None


@dataclass
class Meeting:
    """One attention of the forward pass, with the inputs of its module.

    ``call`` is the attention call in the form of the interface.
    """

    module: nn.Module
    cross: bool
    inputs: Inputs
    layer: LayerRun | None
    outputs: Outputs
    call: Any = None
    mixture: Mixture | None = None
    route: Route | None = None
    chooses: bool = False
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def slot(self) -> Slot | None:
        """The layer that contains the attention, if layers are in a list."""
        return None if self.layer is None else self.layer.slot

    @property
    def kind(self) -> Kind:
        """Kind of attention, from the keys that the queries see.

        A decoder hides some later key from a query that the later query can see. Others, such as a picture or a
        prefix, may be seen from both sides.
        """
        visible = self.call.visible()[0]
        queries, keys = self.call.query.shape[2], self.call.key.shape[2]
        if self.cross or (self.mixture and queries != keys):
            return "cross"
        # Keys beyond those of the queries belong to no later token: learnt ones, before all others or after them.
        more = max(0, keys - queries)
        alike = keys < 2 or visible.all()
        sides = () if alike else (visible[:, more:], visible[:, : keys - more])
        forward = any(not side.triu(1).any() or (side.tril(-1) & ~side.mT).any() for side in sides)
        return "decoder" if forward else "encoder"

    @property
    def loss(self) -> str:
        """Why the outputs of the heads have no fixed output projection."""
        changed = self.outputs.changed or "unknown"
        reason = _LOST.get(changed, f"changes them ({changed}) before it projects them")
        return f"it {reason}. Choose a model of another family (`identilens selfcheck --list`)."

    def follow(self, total: int) -> None:
        """Read the layout of attention that the model computed by itself; ``total`` is the number of products.

        Raises:
            UnsupportedModelError: If its outputs could not be followed to a linear map.
        """
        if self.mixture is None:
            return
        if not self.candidates:
            raise UnsupportedModelError(
                f"{type(self.module).__name__} does its own attention, and what it computes from weights and values "
                f"could not be followed to an output projection: {self.loss}"
            )
        first: Any = self.candidates[0]
        self.route = read_route(self.module, self.mixture, first.mixed, first.inputs, total)
        self.call = self.route.call(self.mixture, 0)
        check_finite(attention_output=self.call.run())


class Watch:
    """Observes one forward pass: attention modules, attention, and linear layers."""

    def __init__(self, model: nn.Module, members: Mapping[nn.Module, Slot]) -> None:
        self.members = members
        self.reached: LayerRun | None = None
        self.meetings: list[Meeting] = []
        self.entered: set[nn.Module] = set()
        self._inputs: dict[nn.Module, Inputs] = {}
        self.follower = Follower(model, self.mixing, lambda: self._current)
        self._current: nn.Module | None = None
        self._pending: Tensor | None = None

    def reaching(self, module: nn.Module, inputs: Inputs) -> None:
        """Record the layer that runs."""
        inputs = tree_map(lambda value: None if isinstance(value, Cache) else value, inputs)
        self.reached = LayerRun(self.members[module], module, inputs)

    def entering(self, module: nn.Module, inputs: Inputs) -> None:
        """Record an attention module that runs."""
        self.entered.add(module)
        if any(map(holds_distributions, (*inputs[0], *inputs[1].values()))):
            self.follower.normalised.add(module)
        self._inputs[module] = inputs
        self._current = module

    def leaving(self, module: nn.Module, inputs: Inputs, output: Any) -> None:
        """Record the end of a module: later products do not belong to its attention."""
        self._inputs.pop(module, None)
        if module is self._current:
            self._current = None

    def attending(self, call: AttentionCall) -> Tensor:
        """Handle a call of the attention interface."""
        output, _ = call.attend()
        check_finite(**{f"the output of attention call {call.index}": output})
        self._meet(call.module, self.follower.follow(output), call=call)
        self._pending = output
        return output

    def mixing(self, mixture: Mixture) -> None:
        """Record a product of weights and values inside an attention module."""
        if self._current is not None:
            self._meet(self._current, mixture, mixture=mixture)

    def projecting(self, module: nn.Module, inputs: Inputs) -> None:
        """Record the input of a module, and whether it consists of head outputs."""
        self._inputs[module] = args, kwargs = inputs
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return
        states, mixed = args[0], self.follower.mixed(args[0])
        if mixed is not None and isinstance(mixed.outputs, Mixture):
            if is_pointwise(module):
                states, mixed = states.mT, replace(mixed, moves=(*mixed.moves, turned))
            for meeting in self.meetings:
                ended = any(is_basic(reader.module) for reader in meeting.candidates)
                if meeting.outputs is mixed.outputs and not ended and [*module.parameters()]:
                    meeting.candidates.append(Candidate(module, states, mixed=mixed))
        elif (pending := self._pending) is not None:
            for joined, added in ((pending.flatten(2), False), (pending.sum(2), True)):
                same = states.numel() == joined.numel()
                if same and torch.equal(states.reshape(joined.shape), joined):
                    self.meetings[-1].candidates.append(Candidate(module, states, added))
                    self._pending = None if is_basic(module) else pending
                    return

    def _meet(self, module: nn.Module, outputs: Outputs, **fields: Any) -> None:
        args, kwargs = self._inputs[module]
        inside = self.reached and module in {*self.reached.module.modules()}
        layer = self.reached if inside else None
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        bound = {**bound, **bound.get("kwargs", {})}
        first = next(iter(bound.values()), None)
        # An encoder-decoder passes the encoder's states to every layer; only cross attention uses them.
        names = ("key_value_states", "encoder_hidden_states", "kv")
        crosses = any(bound.get(name) is not None for name in names)
        for name in ("key", "context"):
            crosses |= isinstance(bound.get(name), Tensor) and bound[name] is not first
        self.meetings.append(
            Meeting(module, crosses, self._inputs[module], layer, outputs, **fields)
        )


def watched(
    model: PreTrainedModel, members: Mapping[nn.Module, Slot], forward: Callable[[], Any]
) -> list[Meeting]:
    """Return the attentions of one forward pass, in call order.

    Raises:
        UnsupportedModelError: If the model has no attention, or the outputs of heads could not be followed to a linear
            map.
        NumericalError: If the attention output has NaN or infinite entries.
    """
    watch = Watch(model, members)
    attending = watch.follower.undisturbed(watch.attending)
    entering, projecting = map(watch.follower.undisturbed, (watch.entering, watch.projecting))
    inner = [module for module in model.modules() if is_attention(module)]
    others = {*model.modules()} - {*inner}
    with (
        intercept(model, attending),
        torch.no_grad(),
        hooked(members, watch.reaching),
        hooked(inner, entering, watch.leaving),
        hooked(others, projecting, watch.leaving),
        watch.follower,
    ):
        forward()
    calling = {meeting.module for meeting in watch.meetings if meeting.call is not None}
    # What a module of the interface computes beside it (a choice of keys) is part of its logits.
    meetings = [
        met for met in watch.meetings if met.call or met.candidates or met.module not in calling
    ]
    for meeting in meetings:
        meeting.chooses = meeting.module in watch.follower.ranking
        meeting.follow(watch.follower.count)
    for module in {*watch.follower.unmixed.values()} - calling - {None}:
        raise UnsupportedModelError(
            f"{type(module).__name__} takes a softmax and does not multiply it with one matrix of values (weights in "
            "bands, blocks or hashes, or no product), so that a part of its attention would be missing. Choose a "
            "model of another family (`identilens selfcheck --list`)."
        )
    called = {meeting.module for meeting in meetings}
    # Linear attention takes no softmax and multiplies no distributions: such a layer has no attention in this sense.
    ran = watch.follower.normalised & watch.entered if called else watch.entered
    silent = sorted({type(module).__name__ for module in ran - called})
    why = "it ran no attention (a softmax over keys times values)"
    if silent:
        why = (
            f"{', '.join(silent)} does its own attention: it neither calls transformers' attention interface nor "
            "multiplies a softmax over keys with values"
        )
    if silent or not called:
        raise UnsupportedModelError(
            f"{type(model).__name__} ({model.config.model_type}) cannot be audited: {why}. Choose a "
            "model of another family (`identilens selfcheck --list`)."
        )
    return meetings


def routes_among(meetings: Sequence[Meeting]) -> dict[int, Route]:
    """Return the routes of some attentions by the numbers of their products, from the first of them on."""
    followed = [met.route for met in meetings if met.route]
    return {route.number - followed[0].number: route for route in followed}


def is_attention(module: nn.Module) -> bool:
    """Whether a module is the innermost module with Attention in its class name."""
    named = (part for part in module.modules() if "Attention" in type(part).__name__)
    return [
        part
        for part in named
        if not type(part).__name__.endswith(("Projection", "Output", "Residual"))
    ] == [module]
