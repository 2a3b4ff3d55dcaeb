"""States of every token of the vocabulary after the same beginning, which runs once."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from inspect import signature
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from identilens.errors import InputError, UnsupportedModelError
from identilens.linalg.checks import check_finite
from identilens.models.explaining import MODELS_RAISE, explained
from identilens.models.inputs import Item
from identilens.models.interface import evaluation_mode
from identilens.models.lens import Lens

Stored = Literal["states", "cache"]
"""What is stored of a text: hidden states, or the keys and values of each layer's attention."""

_BUDGET = 2**28
"""Bytes that a batch of candidates may take."""

_MOST = 4096
_SHORT = 6
"""Tokens of a text with which a model's cache is tried."""

Batches = Iterator[tuple[Int[Tensor, " candidate"], list[Float[Tensor, "candidate d"]]]]
"""Numbers of candidates, and what is stored of each, by layer."""


class Candidates:
    """What a model stores of texts, and of all continuations of a text by one token, layer by layer.

    The beginning of the text runs once, into the model's own cache of keys and values, which all candidates share. A
    model whose cache cannot be shared runs every candidate with its whole beginning.

    Args:
        lens: The model.
        item: A text, with which the layers are found and the cache is tried.
        layers: Layers; all by default. Hidden states are 0 (embedding output) to L, caches 0 to L − 1.
        stored: What is stored.

    Attributes:
        layers: The layers.
        causal: Whether states depend on earlier tokens only.
        shared: Whether candidates share a cache.
        vocabulary: Number of ids that the model reads.

    Raises:
        InputError: For a layer that the model lacks.
        UnsupportedModelError: For an encoder-decoder, or one without tokens or without a cache where that is asked for.

    Examples:
        >>> import identilens as idl
        >>> from identilens.models.candidates import Candidates
        >>> lens = idl.load("bundled-decoder")
        >>> item = lens.read("Snow fell.")[0]
        >>> candidates = Candidates(lens, item, (1, 4))
        >>> ids = item.tensors["input_ids"]
        >>> tokens, states = next(candidates.after(ids[:2]))
        >>> tokens[:2].tolist(), [one.shape[1] for one in states], candidates.shared
        ([0, 1], [256, 256], True)
    """

    def __init__(
        self,
        lens: Lens,
        item: Item,
        layers: Sequence[int] | None = None,
        *,
        stored: Stored = "states",
    ) -> None:
        self.lens, self.stored = lens, stored
        self.name = type(lens.body).__name__
        if lens.model.config.is_encoder_decoder:
            raise UnsupportedModelError(
                f"{self.name} has an encoder and a decoder: its states do not follow from one text alone. "
                "Choose a decoder or an encoder that reads token ids (identilens selfcheck --list)."
            )
        check_ids(item, 0)
        ids = item.tensors["input_ids"][:_SHORT]
        self.causal = {site.kind for site in lens.sites(item)} == {"decoder"}
        self.vocabulary: int = lens.model.config.get_text_config().vocab_size
        # The second is its name below transformers 5.23.
        taken = signature(lens.body.forward).parameters
        self._named = [name for name in ("cache", "past_key_values") if name in taken]
        cache, self.shared = self._empty(), False
        if self.causal and self._named:
            with suppress(UnsupportedModelError, *MODELS_RAISE):
                self._run(ids[None], cache)
                self.shared = all(
                    type(layer) in _SHARABLE and layer.is_initialized for layer in cache.layers
                )
        if stored == "cache" and not self.shared:
            raise UnsupportedModelError(
                f"{self.name} has no cache of keys and values with one entry for each token; use stored='states'."
            )
        depth = len(self._run(ids[None])) - 1
        known = range(depth + 1)
        self.layers = tuple(known if layers is None else layers)
        if missing := sorted(set(self.layers) - set(known)):
            raise InputError(
                f"the model has {'keys and values' if stored == 'cache' else 'hidden states'} of layers 0 to {depth}; "
                f"got {missing}. Pass layers=... of these."
            )

    def _empty(self) -> Any:
        return DynamicCache(config=self.lens.body.config)

    @torch.no_grad()
    def _run(
        self,
        ids: Int[Tensor, "text token"],
        cache: DynamicCache | None = None,
    ) -> list[Float[Tensor, "text kept d"]]:
        """Return what is stored of each token of some texts that follow a cache, by layer."""
        body, cached = self.lens.body, self.stored == "cache"
        options: dict[str, Any] = {"output_hidden_states": True}
        cache = self._empty() if cached and cache is None else cache
        if "use_cache" in signature(body.forward).parameters:
            options |= {"use_cache": cache is not None, **dict.fromkeys(self._named[:1], cache)}
        with evaluation_mode(body), explained(body):
            states = body(input_ids=ids.to(self.lens.device), **options).hidden_states
        if cached:
            layers: Any = cache and cache.layers
            pairs = [(layer.keys, layer.values) for layer in layers if layer.is_initialized]
            new = slice(-ids.shape[1], None)
            states = [
                torch.cat([part[..., new, :].transpose(1, 2).flatten(2) for part in pair], -1)
                for pair in pairs
            ]
        return [*map(Tensor.cpu, states)]

    def read(
        self, ids: Int[Tensor, "text token"], cache: DynamicCache | None = None
    ) -> list[Float[Tensor, "text token d"]]:
        """Return what is stored of each token of texts of one length, by the layers; a cache has what comes before.

        Raises:
            InputError: For a text longer than what the cache of a layer keeps (sliding windows).
            NumericalError: If it has NaN or infinite entries.
        """
        stored, length = self._run(ids, cache), ids.shape[1]
        for layer in self.layers:
            if (kept := stored[layer].shape[1]) < length:
                raise InputError(
                    f"the cache of layer {layer} keeps {kept} positions (a sliding window); the text has {length}. Use "
                    "stored='states' (--stored states), layers without a window, or shorter texts."
                )
            check_finite(**{f"layer {layer}": stored[layer]})
        return [stored[layer] for layer in self.layers]

    def batches(self, texts: Int[Tensor, "text token"]) -> Batches:
        """Yield batches of whole texts of one length: their numbers, and all that is stored of each in one row."""
        for numbers in torch.arange(len(texts)).split(self._size(texts.shape[1], 1)):
            yield numbers, [part.flatten(1) for part in self.read(texts[numbers])]

    def after(self, beginning: Int[Tensor, " token"]) -> Batches:
        """Yield batches of all ids, with what is stored of each after the beginning, by the layers."""
        prefix = self._empty()
        if self.shared and len(beginning):
            self._run(beginning[None], prefix)
        rows = 1 if self.shared else len(beginning) + 1
        for tokens in torch.arange(self.vocabulary).split(self._size(rows, len(beginning) + 1)):
            cache, texts = None, tokens[:, None]
            if self.shared:
                cache = deepcopy(prefix)
                cache.batch_repeat_interleave(len(tokens))
            else:
                texts = joined(beginning, tokens)
            yield tokens, [part[:, -1] for part in self.read(texts, cache)]

    def _size(self, rows: int, keys: int) -> int:
        """Return how many candidates of so many rows and keys fit: states, what a layer computes, keys and values."""
        config: Any = self.lens.body.config.get_text_config()
        width, layers = config.hidden_size, config.num_hidden_layers
        inner = 6 * (getattr(config, "intermediate_size", None) or 4 * width)
        numbers = rows * ((layers + 1) * width + inner) + 4 * layers * width * keys
        return max(1, min(_MOST, _BUDGET // (numbers * self.lens.dtype.itemsize)))


def joined(
    beginning: Int[Tensor, " token"], tokens: Int[Tensor, " candidate"]
) -> Int[Tensor, "candidate length"]:
    """Return the texts of one more token each."""
    return torch.cat([beginning.expand(len(tokens), -1), tokens[:, None]], 1)


_SHARABLE = (DynamicLayer, DynamicSlidingWindowLayer)


def check_ids(item: Item, text: int) -> None:
    """Raise InputError unless a text is nothing but token ids."""
    others = {*item.tensors} - {"input_ids", "attention_mask", "token_type_ids"}
    pair = bool(item.tensors.get("token_type_ids", torch.zeros(1)).any())
    if "input_ids" not in item.tensors or others or pair:
        raise InputError(
            f"text {text} is not made of token ids of one sequence (it has {', '.join(sorted(item.tensors))}); "
            "inversion needs single texts or token ids"
        )
