"""One attention module on one text, run again in float64 with other parameters."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map
from transformers import Cache, PreTrainedModel

from identilens.models.explaining import Exact, refuse_offloaded
from identilens.models.following import Route, capturing
from identilens.models.inputs import Item
from identilens.models.interface import SUM_ERROR, AttentionCall
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.threads import only_here
from identilens.models.windows import by_text


@dataclass(frozen=True)
class Ran:
    """What an attention module computed.

    Attributes:
        call: The attention call of the site.
        rest: The tensors of its other calls, and its outputs after the first, as far as they depend on parameters;
            with a gate also the first, through the gate alone.
        inputs: By path, the first input of each submodule with parameters of its own, if it is in floating point.
    """

    call: AttentionCall
    rest: Sequence[Tensor]
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class Replay:
    """A copy in float64 of the attention module of a site, with its inputs on a text, in the processor's memory.

    Attributes:
        model: The model, which chooses the attention function.
        module: The copy.
        inputs: Arguments of its forward method.
        order: Number of the site's attention among those of the module.
        routes: How the module's attention is followed, if it computes it by itself.
        gated: Whether the outputs of its heads are gated.
    """

    model: PreTrainedModel
    module: nn.Module
    inputs: tuple[tuple, dict]
    order: int
    routes: Mapping[int, Route]
    gated: bool

    @classmethod
    def of(cls, lens: Lens, item: Item, site: Site) -> "Replay":
        """Return the module that computes a site, with what it was given on a text."""
        module = lens.body.get_submodule(site.name)
        refuse_offloaded(module)
        given: list[tuple[tuple, dict]] = []
        hook = only_here(lambda _module, args, kwargs: given.append((args, kwargs)))
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            lens.run([item], lambda call: call.attend()[0])
        finally:
            handle.remove()
        together = [one for one in lens.sites(item) if one.name == site.name]
        routes = {
            at: replace(one.route, total=0)
            for at, one in enumerate(together)
            if one.route is not None
        }
        shared = {
            id(value): value
            for value in vars(module).values()
            if not isinstance(value, nn.Module | dict)
        }
        copied = copy.deepcopy(module, shared).cpu().double().eval()
        inputs, order = tree_map(_exact, given[0]), together.index(site)
        return cls(lens.body, copied, inputs, order, routes, site.gated)

    def run(self, parameters: Mapping[str, Tensor]) -> Ran:
        """Return all that the module computes with these parameters."""
        calls: list[AttentionCall] = []
        inputs: dict[str, Tensor] = {}
        with ExitStack() as hooks:

            def note(path: str, _module: nn.Module, args: tuple) -> None:
                if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                    inputs[path] = args[0]

            for path, module in self.module.named_modules():
                if path and [*module.parameters(recurse=False)]:
                    hooks.enter_context(module.register_forward_pre_hook(partial(note, path)))

            def mix(call: AttentionCall) -> Tensor:
                calls.append(call)
                mixed = call.attend()[0]
                return mixed.detach() if self.gated else mixed

            hooks.enter_context(Exact())
            hooks.enter_context(capturing(self.model, by_text(mix, 1), self.routes))
            output = functional_call(self.module, dict(parameters), *self.inputs)
        others = [call for call in calls if call is not calls[self.order]]
        rest = [
            tensor for call in others for tensor in (call.query, call.key, call.value, call.bias)
        ]
        if self.gated:
            rest += tree_leaves(output)[:1]
        if isinstance(output, tuple | list):
            rest += [one for one in tree_leaves(output[1:]) if not _is_attention(one)]
        return Ran(
            calls[self.order],
            [one for one in rest if isinstance(one, Tensor) and one.requires_grad],
            inputs,
        )


def _is_attention(value: Any) -> bool:
    """Whether an output of a module is its attention, which a model returns and does not go on with."""
    if (
        not isinstance(value, Tensor)
        or value.ndim != 4
        or not value.is_floating_point()
        or bool((value < 0).any())
    ):
        return False
    return bool(((value.sum(-1) - 1).abs() <= SUM_ERROR).all())


def _exact(value: Any) -> Any:
    """Return an input in float64, without a cache; entries that hide keys hide them there too."""
    if isinstance(value, Cache):
        return None
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    if not value.is_floating_point():
        return value
    hidden = value <= torch.finfo(value.dtype).min / 2
    return value.double().masked_fill(hidden, torch.finfo(torch.float64).min)
