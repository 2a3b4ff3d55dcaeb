"""The model as a function of one text: of the input of its first layer, or of what is mixed from a position on.

Attention runs on the family's eager path, which has forward-mode rules; fused attention has none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from identilens.errors import UnsupportedModelError
from identilens.linalg.memory import budget_on
from identilens.models.capture import states_of
from identilens.models.explaining import derivable
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, Handler
from identilens.models.layout import layer_of
from identilens.models.lens import Lens
from identilens.models.sequences import Kind, names_at
from identilens.models.threads import Inputs, first_input, hooked

Source = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class HiddenState:
    """The layer and kind of one output of a `HiddenMap`; the embedding output, layer 0, is never an output.

    The kind is ``encoder`` or ``decoder`` for states of the sequence whose input is varied. It is ``cross`` for decoder
    states when the encoder's input is varied.
    """

    kind: Kind
    layer: int


class HiddenMap:
    """Maps the input of the first layer to the hidden states after each layer, for one text.

    Calling it with ``inputs`` gives the model's own hidden states, in the order of ``outputs``, as transformers reports
    them: if a family ends with a norm, the last state is taken after it. The model runs in evaluation mode.

    Half precision is computed in float32.

    Args:
        lens: The model.
        item: The text.
        source: Which sequence is varied: the only one, or the encoder or decoder input of an encoder–decoder.
        task_head: Run the model with its task head, for `run`.

    Raises:
        UnsupportedModelError: If the first layer cannot be found or its input cannot be replaced.
    """

    def __init__(
        self,
        lens: Lens,
        item: Item,
        source: Source = "encoder",
        *,
        task_head: bool = False,
    ) -> None:
        lens.prove_once([item])
        body = lens.body
        self._forward = partial(
            computed,
            lens,
            item,
            AttentionCall.mixed,
            lens.model if task_head else body,
            derivable,
            output_hidden_states=True,
        )
        seq2seq = lens.model.config.is_encoder_decoder
        site = next(site for site in lens.sites(item) if not seq2seq or site.kind == source)
        self._kinds: dict[str, Kind] = {source: site.kind}
        if seq2seq and source == "encoder":
            self._kinds["decoder"] = "cross"
        self._module = layer_of(body, site)
        self.source = source
        met: list[Any] = []

        record = lambda _, inputs: met.append(first_input(inputs))  # noqa: E731
        with hooked([self._module], record), torch.no_grad():
            output = self._forward()
        if not (met and isinstance(met[0], Tensor) and met[0].ndim == 3):
            raise UnsupportedModelError(
                f"{type(body).__name__}: its first layer does not take hidden states as its first argument, "
                "so they cannot be varied."
            )
        self.inputs: Float[Tensor, "position d_in"] = met[0][0].clone()
        self.outputs = tuple(label for label, _ in self._states(output))
        self._lens, self._item = lens, item

    @property
    def at_once(self) -> int:
        """How many tangents are followed at a time: see `tangents_at_once`."""
        kept = len(self.outputs) * self.inputs.numel()
        return tangents_at_once(self._lens, self._item, len(self.inputs), kept)

    @property
    def passes_at_once(self) -> int:
        """How many reverse passes there are at a time: each holds twice what all layers compute."""
        return max(1, self.at_once // (2 * len(self.outputs)))

    def __call__(self, inputs: Float[Tensor, "position d_in"]) -> tuple[Tensor, ...]:
        """Return the hidden states [position, d_model] that `outputs` lists, for these inputs."""
        return tuple(state for _, state in self._states(self.run(inputs)))

    def tokens(self, kind: Kind | None = None) -> tuple[str, ...]:
        """Return the token at each input position, or at each position of the hidden states of a kind."""
        if kind == "cross":
            return self._item.tokens["decoder"]
        return names_at(
            self._item.tokens,
            self.source,
            len(self.inputs),
            self._lens.model.config,
        )

    def run(self, inputs: Float[Tensor, "position d_in"]) -> Any:
        """Return the model's output for these inputs, with its hidden states."""
        # A shared layer is called once for each layer; only the first call gets the embeddings.
        left = [inputs[None]]

        def replace(module: nn.Module, inputs: Inputs) -> Inputs | None:
            args, kwargs = inputs
            if not left:
                return None
            if args:
                return (left.pop(), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": left.pop()}

        with hooked([self._module], replace):
            return self._forward()

    def _states(self, output: Any) -> list[tuple[HiddenState, Tensor]]:
        states = states_of(output)
        return [
            (HiddenState(kind, layer), state[0])
            for sequence, kind in self._kinds.items()
            for layer, state in enumerate(states[sequence][1:], 1)
        ]


def tangents_at_once(lens: Lens, item: Item, rows: int, kept: int) -> int:
    """Return how many tangents of some rows of a text are followed at a time: in an eighth of `budget_on`.

    A tangent takes the numbers that are ``kept`` of it, and what one layer computes: maps of all heads, and vectors.
    """
    site = lens.sites(item)[-1]
    layer = 4 * site.heads * (max(rows, item.length) + 5 * len(site.zeros))
    size = max(4, lens.dtype.itemsize) * (kept + rows * layer)
    return max(1, budget_on(lens.device) // 8 // size)


class Suffixes:
    """The model's output on one text from any position on.

    Where no position reads a later one, the text runs once with what its attention reads, and then only the positions
    from the start on. Elsewhere it always runs whole.

    Args:
        lens: The model.
        item: The text.
        options: What the model is asked for, as its forward method takes it.
        within: The context of a run: `derivable`, or `explained` for the model as it is.

    Attributes:
        output: The output on the whole text, with the weights of the model.
        held: The attention calls of that run; none where the text always runs whole.
    """

    def __init__(
        self, lens: Lens, item: Item, options: dict[str, Any], within: Callable[..., Any]
    ) -> None:
        self._lens, self._item, self._options, self._within = lens, item, options, within
        self.held: list[AttentionCall] = []

        def keep(call: AttentionCall) -> Tensor:
            self.held.append(call)
            return call.mixed()

        with torch.no_grad():
            self.output = self.run(keep)
        if not (
            {*item.tensors} == {"input_ids"}
            and all(site.kind == "decoder" and site.route is None for site in lens.sites(item))
            and "position_ids" in signature(lens.model.forward).parameters
            and not (lens.other_layers or lens.mixing_layers)
        ):
            self.held.clear()

    def run(self, handler: Handler, start: int = 0) -> Any:
        """Return the output from a position on, with attention by a handler, which gets queries of these positions."""
        item, places = self._item, range(start, self._item.length)

        def after(call: AttentionCall) -> Tensor:
            held = self.held[call.index]
            key = torch.cat([held.key[:, :, :start], call.key], 2)
            value = torch.cat([held.value[:, :, :start], call.value], 2)
            return handler(replace(held.rows(places), query=call.query, key=key, value=value))

        if start:
            ids = item.tensors["input_ids"][start:]
            item = replace(item, tensors={"input_ids": ids, "position_ids": torch.tensor(places)})
        answering, model = after if start else handler, self._lens.model
        return computed(self._lens, item, answering, model, self._within, **self._options)


def computed(
    lens: Lens,
    item: Item,
    handler: Handler,
    model: PreTrainedModel,
    within: Callable[..., Any],
    **options: Any,
) -> Any:
    """Return a model's output on one text, with attention by a handler, within a context such as `derivable`."""
    with lens.capturing(handler, [item], model), within(model):
        return lens.plain([item], model, **options)
