"""A model's run from one of its layers on: earlier layers give what they gave in the model's own run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Event, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, Handler
from identilens.models.lens import Lens
from identilens.models.proof import NOISE
from identilens.models.threads import attribute, hooked


class LaterLayers:
    """The outputs of a model's layers on one text, from which runs of it can begin.

    Args:
        lens: The model.
        item: The text.
        options: What the model is asked for.
        only: Number of an attention in call order: runs begin at its layer or at the first one. Default: at any layer.

    Attributes:
        own: The model's output.
    """

    def __init__(
        self, lens: Lens, item: Item, options: dict[str, Any], only: int | None = None
    ) -> None:
        lens.prove_once([item])
        self._lens, self._item, self._options = lens, item, options
        self._sites = lens.sites(item)
        self._given: dict[nn.Module, list[Any]] = {}
        self._counts: dict[int, int] = {}
        numbers = range(len(self._sites)) if only is None else [only]
        kept = {layers[-1] for number in numbers if (layers := self._earlier(number))}

        def note(layer: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            self._given.setdefault(layer, []).append(output)

        with hooked(kept, after=note):
            self.own = self.run(AttentionCall.run)

    @torch.no_grad()
    def run(self, handler: Handler, copies: int = 1) -> Any:
        """Return the model's output on a batch of copies of the text, with attention by a handler."""
        items, model = [self._item] * copies, self._lens.model
        with self._lens.capturing(handler, items, model):
            return self._lens.plain(items, model, **self._options)

    def skipped(self, number: int) -> int:
        """Return how many attention calls a run leaves out that begins at the layer of an attention.

        0 where layers cannot be left out: they are called several times, or the output would not be the model's own.
        """
        if number not in self._counts:
            layers, site = self._earlier(number), self._sites[number]
            known = layers and len(self._given.get(layers[-1], ())) == 1
            plain = all(one.route is None and not one.gated for one in self._sites)
            places = [one.place for one in self._sites if known and plain and one.place]
            count = sum(
                site.place is not None and one < site.place and one[0] == site.place[0]
                for one in places
            )
            if count:
                with self._from(number):
                    again = self.run(AttentionCall.run)
                name = "logits" if self.own.get("logits") is not None else next(iter(self.own))
                before, after = self.own[name], again[name]
                near = (after - before).norm() <= NOISE[before.dtype] * before.norm()
                count *= bool(near)
            self._counts[number] = count
        return self._counts[number]

    def changed(
        self, number: int, change: Callable[[AttentionCall, Tensor], None], copies: int = 1
    ) -> Any:
        """Return the model's output on copies of the text, where what one attention gives is changed in place."""
        skipped = self.skipped(number)

        def handler(call: AttentionCall) -> Tensor:
            output = call.run()
            if call.index == number - skipped:
                output = output.clone()
                change(call, output)
            return output

        with self._from(number) if skipped else nullcontext():
            return self.run(handler, copies)

    @contextmanager
    def _from(self, number: int) -> Iterator[None]:
        layers, ended = self._earlier(number), Event()
        with ExitStack() as stack:
            # What other threads set in the meantime may still lead here.
            stack.callback(ended.set)
            # What the last of them gives is read; the others only need an output of its form.
            for layer in layers:
                given = _giving(self._given[layers[-1]][0], layer.forward, ended)
                stack.enter_context(attribute([layer], "forward", given))
            yield

    def _earlier(self, number: int) -> list[nn.Module]:
        """Return the layers before that of an attention in its list."""
        path, at = self._sites[number].place or ("", 0)
        return list(self._lens.body.get_submodule(path).children())[:at]


def _giving(output: Any, own: Callable[..., Any], ended: Event) -> Callable[..., Any]:
    """Return a forward method that gives an output to every text of a batch, until that has ended.

    Other threads get the layer's own.
    """
    home = get_ident()

    def forward(*args: Any, **kwargs: Any) -> Any:
        if get_ident() != home or ended.is_set():
            return own(*args, **kwargs)
        texts = len(args[0] if args else kwargs["hidden_states"])
        return tree_map_only(Tensor, lambda one: one.expand(texts, *one.shape[1:]).clone(), output)

    return forward
