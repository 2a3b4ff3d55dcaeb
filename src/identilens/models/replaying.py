"""One attention module on one text, run again in float64 with other parameters."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map
from transformers import Cache, PreTrainedModel

from identilens.models.explaining import Exact, refuse_offloaded
from identilens.models.following import capturing
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.interface import SUM_ERROR, AttentionCall
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.threads import hooked
from identilens.models.windows import by_text


@dataclass(frozen=True)
class Ran:
    """What an attention module computed.

    Attributes:
        layer: The heads of the site.
        rest: Queries, keys, values and biases of its other calls, and its outputs after the first; with a gate also the
            first, through the gate alone.
        inputs: By path, the first input of each submodule with parameters of its own, if it is in floating point.
    """

    layer: CapturedLayer
    rest: Sequence[Tensor]
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class Replay:
    """A copy in float64 of the attention module of a site, with its inputs on a text, in the processor's memory.

    Attributes:
        model: The model, which chooses the attention function.
        sites: The sites whose attention the module computes, in order.
        site: The one that is looked at.
        module: The copy.
        inputs: Arguments of its forward method.
    """

    model: PreTrainedModel
    sites: Sequence[Site]
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
        sites = [one for one in lens.sites(item) if one.name == site.name]
        return cls(lens.body, sites, site, copied, tree_map(_exact, given[0]))

    def run(self, parameters: Mapping[str, Tensor]) -> Ran:
        """Return all that the module computes with these parameters."""
        layers: list[CapturedLayer] = []
        inputs: dict[str, Tensor] = {}

        paths = {
            module: path
            for path, module in self.module.named_modules()
            if path and [*module.parameters(recurse=False)]
        }

        def note(module: nn.Module, args: tuple, _kwargs: dict) -> None:
            if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                inputs[paths[module]] = args[0]

        def mix(call: AttentionCall) -> Tensor:
            mixed = call.attend()[0]
            layers.append(CapturedLayer.of(call, self.site, mixed, None, moved=False))
            return mixed.detach() if self.site.gated else mixed

        routes = {at: site.route for at, site in enumerate(self.sites) if site.route is not None}
        with hooked(paths, note), Exact(), capturing(self.model, by_text(mix, 1), routes):
            output = functional_call(self.module, dict(parameters), *self.inputs)
        layer = layers.pop(self.sites.index(self.site))
        rest = [x for one in layers for x in (one.queries, one.keys, one.values, one.bias)]
        first, *others = output if isinstance(output, tuple | list) else [output]
        rest += [one for one in tree_leaves(others) if not _is_attention(one)]
        rest += tree_leaves(first) if self.site.gated else []
        return Ran(layer, [one for one in rest if isinstance(one, Tensor)], inputs)


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
