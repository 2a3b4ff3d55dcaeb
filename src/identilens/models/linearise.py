"""The model as a function of one text: from the input of its first layer to the hidden states of every layer.

Attention runs on the family's eager path, which has forward-mode rules; fused attention has none.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.errors import InputError, UnsupportedModelError
from identilens.models.capture import no_states
from identilens.models.explaining import derivable
from identilens.models.inputs import Item
from identilens.models.interface import configured
from identilens.models.lens import Lens
from identilens.models.sequences import Kind, names_at
from identilens.models.threads import only_here

Source = Literal["encoder", "decoder"]
Wrt = Literal["embeddings", "embedding_sum"]


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

    Args:
        lens: The model.
        item: The text.
        source: Which sequence is varied: the only one, or the encoder or decoder input of an encoder–decoder.
        wrt: ``embeddings``, the input of the first layer, or ``embedding_sum``, the input of the norm before it.
        whole: Run the model with its task head, for `run`.

    Raises:
        InputError: If the model computes in half precision, or has no norm after its embedding sum.
        UnsupportedModelError: If the first layer cannot be found or its input cannot be replaced.
    """

    def __init__(
        self,
        lens: Lens,
        item: Item,
        source: Source = "encoder",
        wrt: Wrt = "embeddings",
        *,
        whole: bool = False,
    ) -> None:
        if wrt not in ("embeddings", "embedding_sum"):
            raise InputError(f"wrt must be embeddings or embedding_sum; got {wrt!r}.")
        if source not in sources(lens):
            raise InputError(
                f"{lens.model.config.model_type} takes {' and '.join(sources(lens))} input; got {source!r}."
            )
        lens.prove_once([item])
        self._body = lens.body
        model = lens.model if whole else lens.body
        self._capturing = partial(lens.capturing, items=[item], model=model)
        self._run = partial(lens.plain, [item], model)
        self._seq2seq = bool(lens.model.config.is_encoder_decoder)
        site = next(site for site in lens.sites(item) if not self._seq2seq or site.kind == source)
        self._own: Kind = source if self._seq2seq else site.kind
        self._module = self._first_layer(site.name)
        if wrt == "embedding_sum":
            self._module = self._embedding_norm(site.name)
        self.source: Source = source
        found: list[Any] = []

        def record(module: nn.Module, args: tuple, kwargs: dict) -> None:
            found.append(args[0] if args else kwargs.get("hidden_states"))

        with (
            self._module.register_forward_pre_hook(only_here(record), with_kwargs=True),
            torch.no_grad(),
        ):
            self._forward()
        if (
            not found
            or not isinstance(found[0], Tensor)
            or found[0].ndim != 3
            or len(found[0]) != 1
        ):
            raise UnsupportedModelError(
                f"{type(self._body).__name__}: its first layer does not take hidden states as its first argument, "
                "so they cannot be varied."
            )
        self.inputs: Float[Tensor, "position d_in"] = found[0][0].clone()
        if self.inputs.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"{lens.name} computes in {str(self.inputs.dtype).removeprefix('torch.')}, too coarse for derivatives. "
                'Load it in single precision: load(..., dtype="float32"), or model.float().'
            )
        with torch.no_grad():
            states = self._states(self.inputs)
        self.outputs: tuple[HiddenState, ...] = tuple(label for label, _ in states)
        self._config = lens.model.config
        self._tokens = item.tokens

    def __call__(self, inputs: Float[Tensor, "position d_in"]) -> tuple[Tensor, ...]:
        """Return the hidden states [position, d_model] that `outputs` lists, for these inputs."""
        return tuple(state for _, state in self._states(inputs))

    def tokens(self, kind: Kind | None = None) -> tuple[str, ...]:
        """Return the token at each input position, or at each position of the hidden states of a kind."""
        if kind == "cross":
            return self._tokens["decoder"]
        return names_at(self._tokens, self.source, len(self.inputs), self._config)

    def run(self, inputs: Float[Tensor, "position d_in"]) -> Any:
        """Return the model's output for these inputs, with its hidden states."""

        def replace(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            # A shared layer is called once for each layer; only the first call gets the embeddings.
            handle.remove()
            return (
                ((inputs[None], *args[1:]), kwargs)
                if args
                else (args, {**kwargs, "hidden_states": inputs[None]})
            )

        with self._module.register_forward_pre_hook(only_here(replace), with_kwargs=True) as handle:
            return self._forward()

    def _states(self, inputs: Tensor) -> list[tuple[HiddenState, Tensor]]:
        output = self.run(inputs)
        found: dict[Kind, tuple[Tensor, ...]]
        if not self._seq2seq:
            if output.get("hidden_states") is None:
                raise no_states(type(self._body).__name__)
            found = {self._own: output.hidden_states}
        elif self._own == "encoder":
            found = {"encoder": output.encoder_hidden_states, "cross": output.decoder_hidden_states}
        else:
            found = {"decoder": output.decoder_hidden_states}
        return [
            (HiddenState(kind, layer), state[0])
            for kind, states in found.items()
            for layer, state in enumerate(states[1:], 1)
        ]

    def _forward(self) -> Any:
        # Mixtures of experts run expert by expert, because their grouped product has no forward-mode rule.
        eager_experts = configured(self._body, "_experts_implementation_internal", "eager")
        attending = self._capturing(lambda call: call.attend()[0])
        with eager_experts, attending, derivable(self._body):
            return self._run(output_hidden_states=True)

    def _first_layer(self, attention: str) -> nn.Module:
        """Return the outermost layer of a list of layers that contains a stack's first attention."""
        parts = attention.split(".")
        for end in range(1, len(parts)):
            if isinstance(self._body.get_submodule(".".join(parts[:end])), nn.ModuleList):
                return self._body.get_submodule(".".join(parts[: end + 1]))
        raise UnsupportedModelError(
            f"{type(self._body).__name__} does not have its layers in a list (attention found at {attention}), "
            "so the input of the first layer cannot be found."
        )

    def _embedding_norm(self, attention: str) -> nn.Module:
        """Return the norm between the embedding sum and the first layer."""
        stack = attention.split(".")[0] + "." if self._seq2seq else ""
        called: list[nn.Module] = []

        def listen(module: nn.Module, args: tuple) -> None:
            called.append(module)

        with ExitStack() as hooks, torch.no_grad():
            for name, module in self._body.named_modules():
                if module is self._module or (
                    "Norm" in type(module).__name__ and name.startswith(stack)
                ):
                    hooks.enter_context(module.register_forward_pre_hook(only_here(listen)))
            self._forward()
        if called[0] is self._module:
            raise InputError(
                f"{self._body.config.model_type} passes its embedding sum to the first layer unchanged. "
                'Pass wrt="embeddings", which is the same here.'
            )
        return called[0]


def sources(lens: Lens) -> tuple[Source, ...]:
    """Return the sequences whose input can be varied: two for encoder–decoders."""
    return ("encoder", "decoder") if lens.model.config.is_encoder_decoder else ("encoder",)
