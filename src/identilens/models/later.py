"""A model's run from one of its layers on: earlier layers give what they gave in the model's own run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.models.threads import attribute, only_here


class LaterLayers:
    """The outputs of a model's layers on one text, from which a run can begin at any of them.

    Attributes:
        own: The model's output.
    """

    @torch.no_grad()
    def __init__(self, lens: Lens, item: Item, options: dict[str, Any]) -> None:
        lens.prove_once([item])
        self._sites = lens.sites(item)
        paths = dict.fromkeys(site.place[0] for site in self._sites if site.place is not None)
        self._lists = {path: [*lens.body.get_submodule(path).children()] for path in paths}
        self._given: dict[nn.Module, list[Any]] = {}

        def note(layer: nn.Module, _inputs: Any, output: Any) -> None:
            self._given.setdefault(layer, []).append(output)

        with ExitStack() as hooks:
            for layer in (layer for layers in self._lists.values() for layer in layers):
                hook = layer.register_forward_hook(only_here(note))
                hooks.callback(hook.remove)
            self.own = lens.run([item], AttentionCall.run, whole=True, changes=True, **options)

    def before(self, number: int) -> int:
        """Return how many attention calls the layers before an attention make; 0 where these cannot be left out."""
        site = self._sites[number]
        plain = all(one.route is None and not one.gated for one in self._sites)
        if site.place is None or not plain:
            return 0
        path, at = site.place
        once = all(len(self._given.get(layer, ())) == 1 for layer in self._lists[path][:at])
        earlier = [one for one in self._sites if one.place and one.place[0] == path]
        return sum(one.place[1] < at for one in earlier if one.place) if once else 0

    @contextmanager
    def since(self, number: int) -> Iterator[None]:
        """Begin runs of this text, also of several copies, at the layer of an attention inside the context."""
        path, at = self._sites[number].place or ("", 0)
        with ExitStack() as stack:
            for layer in self._lists.get(path, [])[:at]:
                given = _giving(self._given[layer][0], layer.forward)
                stack.enter_context(attribute([layer], "forward", given))
            yield


def _giving(output: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward method that gives an output to every text of a batch; other threads get the layer's own."""
    home = get_ident()

    def forward(*args: Any, **kwargs: Any) -> Any:
        if get_ident() != home:
            return own(*args, **kwargs)
        texts = len(args[0] if args else kwargs["hidden_states"])
        return tree_map_only(Tensor, lambda one: one.expand(texts, *one.shape[1:]).clone(), output)

    return forward
