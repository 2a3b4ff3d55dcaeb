"""What is captured of one text: hidden states and the heads of each attention layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from identilens.errors import UnsupportedModelError
from identilens.models.following import capturing
from identilens.models.gates import read_with
from identilens.models.heads import CapturedLayer, Head
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, Handler, scale_of
from identilens.models.layout import Site, Sites
from identilens.models.sequences import Kind, sides
from identilens.models.threads import EndedError, Inputs, hooked


@dataclass(frozen=True)
class CapturedText:
    """One text with its captured internals; attention layers in call order.

    Tokens and hidden states (embedding output and every layer's output) are given by sequence: "encoder" (or the only
    sequence) and "decoder"; without them no hidden states were captured.
    """

    tokens: dict[str, tuple[str, ...]]
    layers: tuple[CapturedLayer, ...]
    hidden_states: dict[str, Float[Tensor, "layer position d_model"]]

    @property
    def heads(self) -> Iterator[Head]:
        """Every head of every layer."""
        return (head for layer in self.layers for head in layer.heads)


@dataclass(eq=False)
class Collector:
    """Stores the attention layers of each text of a batch, with the weights of all rows or of some.

    Attributes:
        sites: The attention layers of the model.
        items: The texts of the batch.
        weights: Whether weights are stored.
        rows: The rows of which they are; all by default.
        number: The one layer that is stored, by its number in call order, after which the run ends; all by default.
    """

    sites: Sites
    items: Sequence[Item]
    weights: bool = True
    rows: Sequence[int] | None = None
    number: int | None = None

    def __post_init__(self) -> None:
        self.lengths = Lengths(self.items)
        self.layers: list[list[CapturedLayer]] = [[] for _ in self.items]

    def __call__(self, call: AttentionCall) -> Tensor:
        """Handle one attention call: return its output, and store the part of each text."""
        site = self.sites[call.index]
        if self.number not in (None, call.index):
            return call.run()
        for index, layers in enumerate(self.layers):
            rows, columns = self.lengths.of(index, site.kind, call)
            part = call.only([index], rows, columns)
            layers.append(CapturedLayer.of(part, site, self.weights, self.rows))
        if self.number is not None:
            raise EndedError
        return call.run()


class Lengths:
    """How many positions of each sequence in a batch belong to each text; the rest is padding."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._lengths = [
            {name: len(tokens) for name, tokens in item.tokens.items()} for item in items
        ]
        self._padded = {
            name: max(length[name] for length in self._lengths) for name in self._lengths[0]
        }

    @property
    def padded(self) -> bool:
        """Whether any text has padding."""
        return any(length != self._padded for length in self._lengths)

    def of(self, index: int, kind: Kind, call: AttentionCall) -> tuple[int, int]:
        """Return the numbers of query and key positions of one call that belong to the text."""
        query, key = sides(kind, self._padded)
        return self.kept(index, query, call.query.shape[-2]), self.kept(
            index, key, call.key.shape[-2]
        )

    def kept(self, index: int, sequence: str, positions: int) -> int:
        """Return the number of positions of a sequence that belong to the text."""
        # A sequence of another length has no tokens (patches, audio frames) and no padding.
        return self._lengths[index][sequence] if self.counted(sequence, positions) else positions

    def counted(self, sequence: str, positions: int) -> bool:
        """Return whether the positions of a padded sequence are tokens, whose number in each text is known."""
        return self._padded.get(sequence) == positions


def states_of(output: Any) -> dict[str, Sequence[Tensor]]:
    """Return the hidden states in a model's output by sequence, the embedding output and those of each layer.

    Raises:
        UnsupportedModelError: If it has none.
    """
    both = {
        "encoder": output.get("encoder_hidden_states") or output.get("hidden_states"),
        "decoder": output.get("decoder_hidden_states"),
    }
    if not any(both.values()):
        raise UnsupportedModelError(
            f"{type(output).__name__} has no hidden states, as models that join two towers give none. Load one tower "
            '(CLIPTextModel, CLIPVisionModel), or, for an audit, leave effects on the model out with effects="none" '
            "(--effects none)."
        )
    return {sequence: states for sequence, states in both.items() if states is not None}


def split_states(output: Any, lengths: Lengths, index: int) -> dict[str, Tensor]:
    """Return one text's hidden states by sequence, [layer, position, d_model], without padding."""
    return {
        sequence: torch.stack(
            [state[index, : lengths.kept(index, sequence, state.shape[1])] for state in states]
        )
        for sequence, states in states_of(output).items()
    }


@contextmanager
def intercepting(
    body: PreTrainedModel, sites: Sequence[Site], model: PreTrainedModel, handler: Handler
) -> Iterator[None]:
    """Send every attention call of a model to ``handler`` inside the context: see `capturing`.

    Calls have their gates, which are computed when they are first asked for. ``sites`` are those of the ``body``.
    """
    reads: dict[nn.Module, Inputs] = {}

    def answer(call: AttentionCall) -> Tensor:
        if not (call.index < len(sites) and sites[call.index].gated):
            return handler(call)
        inputs, projection = reads[call.module], sites[call.index].projection

        def read(mixed: Tensor) -> Tensor:
            return read_with(call.module, inputs, mixed, [projection])[projection].view_as(mixed)

        @cache
        def gate() -> Tensor:
            output = call.run()
            factor = read(torch.ones_like(output))
            return (
                factor * scale_of(read(output), factor * output)
                if sites[call.index].normed
                else factor
            )

        return handler(replace(call, gating=gate))

    gated = [body.get_submodule(name) for name in {site.name for site in sites if site.gated}]
    routes = {site.route.number: site.route for site in sites if site.route}
    with (
        hooked(gated, reads.__setitem__),
        capturing(model, answer if gated else handler, routes, task_head=True),
    ):
        yield
