"""A model's run from one of its layers on: earlier layers give what they gave in the model's own run."""

from collections import defaultdict
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
from identilens.models.outputs import relative
from identilens.models.proof import NOISE
from identilens.models.threads import Inputs, attribute, first_input, hooked


class LaterLayers:
    """The outputs of a model's layers on one text, from which runs of it can begin.

    Args:
        lens: The model.
        item: The text.
        options: What the model is asked for.

    Attributes:
        output: The model's output.
    """

    def __init__(self, lens: Lens, item: Item, options: dict[str, Any]) -> None:
        lens.prove_once([item])
        self._lens, self._item, self._options = lens, item, options
        self._sites = lens.sites(item)
        self._outputs: dict[nn.Module, list[Any]] = defaultdict(list)
        self._counts: dict[int, int] = {}
        earlier = map(self._earlier, range(len(self._sites)))
        kept = {layers[-1] for layers in earlier if layers}

        def note(layer: nn.Module, _inputs: Inputs, output: Any) -> None:
            self._outputs[layer].append(output)

        with hooked(kept, after=note):
            self.output = self.run(AttentionCall.run)

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
            layers, slot, count = self._earlier(number), self._sites[number].slot, 0
            plain = all(site.route is None and not site.gated for site in self._sites)
            if slot and plain and layers and len(self._outputs[layers[-1]]) == 1:
                with self._from(number):
                    again = self.run(AttentionCall.run)
                name = (
                    "logits" if self.output.get("logits") is not None else next(iter(self.output))
                )
                if relative(again[name], self.output[name]) <= NOISE[self._lens.dtype]:
                    places = (site.slot for site in self._sites if site.slot)
                    count = sum(other[0] == slot[0] and other < slot for other in places)
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
        layers, home, ended = self._earlier(number), get_ident(), Event()
        # What the last of them gives is read; the others only need an output of its form.
        output = self._outputs[layers[-1]][0]

        def giving(original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                # Other threads get the layer's own, also of what they set in the meantime.
                if get_ident() != home or ended.is_set():
                    return original(*args, **kwargs)
                size = len(first_input((args, kwargs)))
                return tree_map_only(
                    Tensor, lambda part: part.expand(size, *part.shape[1:]).clone(), output
                )

            return forward

        with ExitStack() as stack:
            stack.callback(ended.set)
            for layer in layers:
                stack.enter_context(attribute([layer], "forward", giving(layer.forward)))
            yield

    def _earlier(self, number: int) -> list[nn.Module]:
        """Return the layers before that of an attention in its list."""
        path, index = self._sites[number].slot or ("", 0)
        return list(self._lens.body.get_submodule(path).children())[:index]
