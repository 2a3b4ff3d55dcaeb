"""A model with its tokenizer, and methods to capture its internals while it runs."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from inspect import signature
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from identilens.errors import (
    IdentilensError,
    InputError,
    JoinedTextsError,
    NumericalError,
    UnsupportedModelError,
)
from identilens.models.capture import CapturedText, Collector, Lengths, intercepting, split_states
from identilens.models.explaining import MODELS_RAISE, explained
from identilens.models.families import has_positions_by_length, refuse_sparse_blocks
from identilens.models.following import is_attention
from identilens.models.heads import CapturedLayer
from identilens.models.identity import digest_of, state_of, unwrapped
from identilens.models.inputs import InputReader, Item, collate
from identilens.models.interface import AttentionCall, Handler, configured, evaluation_mode
from identilens.models.layout import (
    Sites,
    discover,
    find_site,
    other_layers,
)
from identilens.models.offloading import device_of
from identilens.models.proof import NOISE, ONE_TEXT, Check, Proof
from identilens.models.sequences import Kind, position_names
from identilens.models.substitution import ModelRun, Replacements, Substitution, text_losses
from identilens.models.threads import EndedError
from identilens.models.windows import by_text

T = TypeVar("T")
_SHORT = 8
"""Number of tokens of the first text with which attention layers are found."""


class Lens:
    """A transformer and its tokenizer, with access to its internals; the model itself is never changed.

    Args:
        model: Any transformers model.
        tokenizer: Needed for text, but not for token ids and prepared batches.
        image_processor: Needed for images, but not for batches with pixel_values.
        name: Name of the model in results; its own name or path by default.

    Raises:
        InputError: For a model that is not of transformers, or in a wrapper of peft.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> lens
        Lens('bundled': BertModel, bert, float32 on cpu)
        >>> texts = lens.read(["Snow fell on the harbour.", "Nobody came."])
        >>> [item.length for item in texts]
        [8, 5]
        >>> len(lens.sites(texts[0])), lens.other_layers
        (6, ())
        >>> all(check.passed for check in lens.prove(texts))
        True
        >>> [captured] = lens.capture("Snow fell on the harbour.", weights=True, hidden_states=True)
        >>> captured.layers[3].weights.shape, captured.hidden_states["encoder"].shape
        (torch.Size([12, 8, 8]), torch.Size([7, 8, 384]))
        >>> weights = captured.layers[3].weights[5]
        >>> other = idl.Lens(lens.model, lens.tokenizer)  # of a model in memory
        >>> again = other.substitute({(3, 5): weights}, "Snow fell on the harbour.")
        >>> bool((again.hidden_states["encoder"] - captured.hidden_states["encoder"]).abs().max() < 1e-4)
        True
        >>> lens.run(texts).last_hidden_state.shape
        torch.Size([2, 8, 384])
        >>> with lens.capturing(lambda call: call.attend()[0], texts[:1]):
        ...     states = lens.plain(texts[:1], lens.body).last_hidden_state
        >>> states.shape
        torch.Size([1, 8, 384])
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        image_processor: Any = None,
        name: str | None = None,
    ) -> None:
        model = unwrapped(model)
        self.model = model
        self.tokenizer: Any = tokenizer
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        self.reader = InputReader(model.config, tokenizer, image_processor)
        self.load_options: Mapping[str, Any] | None = None
        self._proven: set[Hashable] = set()
        self._joins_texts = False
        self._sites: Sites | None = None
        self._sites_of: tuple | None = None

    def __repr__(self) -> str:
        model = f"{type(self.model).__name__}, {self.model.config.model_type}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Lens({self.name!r}: {model}, {dtype} on {self.device})"

    @property
    def device(self) -> torch.device:
        """Device of the model's first parameters."""
        return device_of(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the model's parameters."""
        return next(self.model.parameters()).dtype

    @property
    def body(self) -> PreTrainedModel:
        """The model without its task head; it contains all attention: a head that has some belongs to it."""
        body = self.model.base_model
        attends = any(map(is_attention, {*self.model.modules()} - {*body.modules()}))
        reads = self.model.main_input_name in signature(body.forward).parameters
        return body if isinstance(body, PreTrainedModel) and reads and not attends else self.model

    @property
    def digest(self) -> str:
        """Checksum of all current parameters and buffers, and of active adapters: the same for the same model.

        Every tensor is read each time, because weights can change unnoticed; it is read on its device.
        """
        return digest_of(self.model)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that identify the model in a result's provenance."""
        config, sites = self.model.config, self._sites or ()
        special = {
            "gated_heads": any(site.gated for site in sites),
            "normed_heads": any(site.normed for site in sites),
            "layers_without_attention": list(self.other_layers),
            "layers_with_other_mixers": list(self.mixing_layers),
        }
        return {
            "name": self.name,
            "class": type(self.model).__name__,
            "family": config.model_type,
            "revision": getattr(config, "_commit_hash", None),
            "digest": self.digest,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            **{name: fact for name, fact in special.items() if fact},
        }

    @property
    def other_layers(self) -> tuple[str, ...]:
        """Layers without attention beside layers with it (state spaces, convolutions); known after `sites`."""
        return other_layers(self.body, self._sites or ())[0]

    @property
    def mixing_layers(self) -> tuple[str, ...]:
        """Layers that mix positions by more than attention (a state space or convolution beside it), after `sites`."""
        return other_layers(self.body, self._sites or ())[1]

    def read(self, inputs: Any, max_length: int | None = None) -> list[Item]:
        """Return the inputs as unpadded items, one for each text; see `InputReader.read`."""
        return self.reader.read(inputs, max_length)

    def sites(self, inputs: Any) -> Sites:
        """Return the model's attention layers in call order, found on the start of a text, and again after a change.

        Args:
            inputs: An item, or texts of which the first is read; see `InputReader.read`.

        Raises:
            InputError: For inputs that cannot be used.
            UnsupportedModelError: If the attention cannot be captured faithfully.
        """
        weights = state_of(self.model)
        if self._sites is None or self._sites_of != weights:
            item = self.read(inputs)[0]
            try:
                self._sites = self._discovered(item.start(_SHORT))
            except IdentilensError:
                raise
            except MODELS_RAISE:
                # Some families need more than a few tokens (landmarks, chunks).
                with explained(self.model):
                    self._sites = self._discovered(item)
            self._sites_of = weights
            self._joins_texts |= self._heeds_longest
        return self._sites

    def _discovered(self, item: Item) -> Sites:
        refuse_sparse_blocks(self.model)
        with evaluation_mode(self.body):
            return discover(self.body, lambda: self.plain([item], self.body))

    @torch.no_grad()
    def run(
        self,
        inputs: Any,
        handler: Handler | None = None,
        *,
        task_head: bool = False,
        changes: bool = False,
        **options: Any,
    ) -> Any:
        """Return the output on one batch of texts or items, padded on the right; with the task head if ``task_head``.

        Every attention call goes to ``handler``, which returns its output. Without a handler the model's own attention
        runs. ``options``, such as ``output_hidden_states=True``, go to the model's forward method.

        The first batch of its kind proves that capture is faithful; this costs one more forward pass without capture.
        For a handler that ``changes`` attention, a faithful run is compared first.

        Raises:
            UnsupportedModelError: If a check fails, with its name and figure.
            JoinedTextsError: For several texts of which one would run otherwise if it were alone.
        """
        items = self.read(inputs)
        if handler is not None:
            self.sites(items[0])
        self._refuse_mixed(items)
        if handler is not None and changes:
            self.prove_once(items)
        forward = partial(self._forward, task_head=task_head, **options)
        if handler is None or changes or self._kind_of_batch(items) in self._proven:
            return forward(items, handler)
        return self._proving(self._proof(items), handler, forward)

    def prove_once(self, inputs: Any) -> None:
        """Run the proof on a batch of texts or items, unless its kind is already proven.

        Raises:
            UnsupportedModelError: If a check fails, with its name and figure.
        """
        items = self.read(inputs)
        if self._kind_of_batch(items) not in self._proven:
            self.run(items, AttentionCall.run)

    def prove(self, inputs: Any) -> tuple[Check, ...]:
        """Return the checks of capture on one batch of texts or items, each with its figure, passed or failed.

        Raises:
            UnsupportedModelError: If the attention cannot be captured at all.
        """
        items = self.read(inputs)
        proof = self._proof(items, strict=False)
        self._refuse_mixed(items)
        with torch.no_grad():
            self._proving(proof, lambda call: call.attend()[0], self._forward)
        return tuple(proof.checks.values())

    def _proof(self, items: Sequence[Item], strict: bool = True) -> Proof:
        return Proof(
            f"{type(self.model).__name__} ({self.model.config.model_type})",
            self.sites(items[0]),
            items,
            NOISE[self.dtype],
            strict=strict,
        )

    def _proving(self, proof: Proof, handler: Handler, forward: Callable[..., Any]) -> Any:
        plain = forward(proof.items, None)
        with proof.watching():
            output = forward(proof.items, proof.answering(handler))
        proof.conclude(plain, output, partial(forward, proof.items))
        if proof.finite and len(proof.items) > 1:
            forward([proof.items[proof.lone]], proof.alone)
        if proof.finite and all(check.passed for check in proof.checks.values()):
            self._proven.add(self._kind_of_batch(proof.items))
        return output

    def _forward(
        self,
        items: Sequence[Item],
        handler: Handler | None,
        task_head: bool = False,
        **options: Any,
    ) -> Any:
        model = self.model if task_head else self.body
        with (
            evaluation_mode(model) if handler is None else self.capturing(handler, items, model),
            explained(model),
        ):
            return self.plain(items, model, **options)

    def plain(self, items: Sequence[Item], model: PreTrainedModel, **options: Any) -> Any:
        """Return the output of the model, or its body, for one batch of items, without a cache for later tokens."""
        cache = {"use_cache": False} if "use_cache" in signature(model.forward).parameters else {}
        with configured(model, "use_cache", False):
            return model(**collate(items, self.device), **cache, **options)

    def capturing(
        self, handler: Handler, items: Sequence[Item], model: PreTrainedModel | None = None
    ) -> AbstractContextManager[None]:
        """Send every attention call of a batch of items to ``handler`` inside the context."""
        sites, body = self.sites(items[0]), self.body
        return intercepting(body, sites, model or body, by_text(handler, len(items)))

    def _kind_of_batch(self, items: Sequence[Item]) -> Hashable:
        """Return what a proof is valid for: weights, attention, kind of input, padding, lengths up to a power of 2."""
        lengths = [item.length.bit_length() for item in items]
        kind = (
            self.model.config._attn_implementation,
            frozenset(items[0].tensors),
            items[0].bare,
            Lengths(items).padded,
            frozenset().union(*(item.hiding for item in items)),
        )
        return state_of(self.model), kind, (min(lengths), max(lengths)), len(items) > 1

    def capture(
        self,
        inputs: Any,
        *,
        weights: bool = False,
        hidden_states: bool = False,
        batch_size: int = 8,
        max_length: int | None = None,
    ) -> Iterator[CapturedText]:
        """Yield the internals of the model for each text, without padding; hidden states in the processor's memory.

        Heads stay on the device of their layer.

        Args:
            inputs: Texts, pairs, token ids, images or a batch; see `InputReader.read`.
            weights: Capture attention weights (n x n per head). Without them the model's own attention runs unchanged.
            hidden_states: Capture the embedding output and each layer's output.
            batch_size: Number of texts in one forward pass.
            max_length: Cut longer texts to this many tokens.

        Raises:
            InputError: For inputs that cannot be used.
            UnsupportedModelError: If the attention cannot be captured faithfully.
        """
        items = self.read(inputs, max_length)
        self.sites(items[0])

        for batch in self.batches(items, range(len(items)), batch_size):
            texts = [items[number] for number in batch]
            collector = Collector(self.sites(texts[0]), texts, weights)
            options = {"output_hidden_states": True} if hidden_states else {}
            output = self.run(texts, collector, **options)
            for index, item in enumerate(texts):
                split = split_states(output, collector.lengths, index) if hidden_states else {}
                states = {name: state.cpu() for name, state in split.items()}
                layers = tuple(collector.layers[index])
                names = item.tokens or {
                    "encoder": position_names(self.model.config, layers[0].queries.shape[1])
                }
                yield CapturedText(names, layers, states)

    def layer(
        self,
        item: Item,
        layer: int,
        kind: Kind | None = None,
        rows: Sequence[int] | None = None,
    ) -> CapturedLayer:
        """Return the heads of one layer on one text, with their weights, or those of some rows.

        Layers count from 0 within their kind, which is needed if the model has several. Of some rows of a long text,
        m rows of n keys are computed, and nothing of the size of n rows of n keys.

        Raises:
            InputError: If the model has no such layer.
            UnsupportedModelError: If the attention cannot be captured faithfully.
        """
        sites = self.sites(item)
        collector = Collector(
            sites,
            [item],
            rows=rows,
            number=find_site(sites, layer, 0, kind),
        )
        self.prove_once([item])
        with suppress(EndedError):
            self.run([item], collector)
        return collector.layers[0][0]

    def batches(
        self, items: Sequence[Item], order: Iterable[int], size: int
    ) -> Iterator[list[int]]:
        """Yield the numbers of items, in the given order, in batches of at most ``size`` that the model can run.

        Texts of which one runs otherwise in a batch than alone come one by one: the first batch of its kind is proven.
        """
        for _, alike in groupby(order, key=lambda number: items[number].shapes):
            numbers = list(alike)
            for first in range(0, len(numbers), size):
                batch = numbers[first : first + size]
                if len(batch) > 1 and not self._joins_texts:
                    try:
                        self.prove_once([items[number] for number in batch])
                    except JoinedTextsError:
                        self._joins_texts = True
                    except (UnsupportedModelError, NumericalError):
                        # Hidden states alone need no attention; whoever uses it meets the error again.
                        pass
                yield from [[number] for number in batch] if self._joins_texts else [batch]

    def _refuse_mixed(self, items: Sequence[Item]) -> None:
        """Raise for several texts of which each would run otherwise if it were alone."""
        if len(items) > 1 and (self._heeds_longest or len({item.shapes for item in items}) > 1):
            raise JoinedTextsError(
                f"{type(self.model).__name__} ({self.model.config.model_type}) cannot run these texts in one batch: "
                "their inputs differ in shape, or the longest changes the others (it sets their rotary positions, or "
                f"padding decides which keys of equal rank they choose). {ONE_TEXT}"
            )

    @property
    def _heeds_longest(self) -> bool:
        """Whether the longest text of a batch changes the others; known after `sites`."""
        chooses = any(site.chooses for site in self._sites or ())
        return chooses or has_positions_by_length(self.model.config)

    def substitute(self, replacements: Replacements, text: Any) -> ModelRun:
        """Return the model's result on a text when some heads have the given weights.

        Each of these heads mixes its own values with its given weights. Later layers see the change and compute their
        own weights from it. All other heads, and a run without replacements, are computed in the same way. So
        differences between two runs come only from the weights.

        Args:
            replacements: Weights by (layer, head), or (layer, head, kind) if the model has several kinds of attention:
                a whole map [query, key], or `Rows` for some of its queries. Any finite numbers that are zero on hidden
                keys are allowed, also effective attention, which is not a distribution.
            text: One text, pair, list of token ids, or image; see `InputReader.read`.

        Raises:
            InputError: For more than one text, a head the model lacks, weights of another shape, or weight on a
                key that is hidden.
            NumericalError: For weights that are NaN or infinite.
        """
        items = self.read(text)
        if len(items) != 1:
            raise InputError(
                f"weights belong to one text; got {len(items)} texts. Call substitute for each of them."
            )
        item = items[0]
        output = self.run(
            items,
            Substitution(self.sites(item), replacements),
            task_head=True,
            changes=bool(replacements),
            output_hidden_states=True,
        )
        states, logits = split_states(output, Lengths(items), 0), output.get("logits")
        losses = text_losses(self.model, item, logits)
        return ModelRun(
            states,
            None if logits is None else logits[0],
            None if losses is None else float(losses),
        )
