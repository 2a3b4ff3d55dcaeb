"""Interception of attention, at the point where transformers chooses the function that computes it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from identilens.errors import UnsupportedModelError
from identilens.linalg.memory import blocks, wide
from identilens.models.offloading import device_of
from identilens.models.threads import attribute, configurations, restored

Attend = Callable[..., tuple[Tensor, Tensor]]
"""Attention function of transformers' interface: returns output (batch, n, heads, d_v) and weights or None."""

SUM_ERROR = 1e-2
"""Rows of weights that sum to one within this error have no sink; large enough for half precision."""

READABLE = ("eager", "sdpa")
"""Implementations whose masks can be read. During capture, others (flash, flex) are replaced by one of these."""


def seen_keys(mask: Tensor) -> Tensor:
    """Return True where a mask of transformers, of booleans or of terms added to the logits, hides nothing."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def scale_of(
    read: Float[Tensor, "*batch d_v"], plain: Float[Tensor, "*batch d_v"]
) -> Float[Tensor, "*batch 1"]:
    """Return the factor of each row and head with which one tensor is nearest to another."""
    size = wide(plain).square().sum(-1, keepdim=True)
    product = (wide(read) * wide(plain)).sum(-1, keepdim=True)
    return torch.where(size > 0, product / size, 0.0).to(read)


@dataclass(frozen=True)
class AttentionCall:
    """One call of a model's attention function, padding included, as the model family makes it.

    Attributes:
        index: Number of the call within the forward pass; it identifies the layer.
        query: Queries, after positions are applied.
        key: Keys; like ``value``, not repeated over the heads of a group.
        mask: Boolean (True is visible) or additive float, broadcastable to (batch, heads, n, m), or None.
        arguments: Other arguments that the family passes (scaling, softcap, position_bias, ...).
        original: The function that the model calls outside of capture.
        eager: The family's eager attention, which also returns weights.
        windows: Number of windows of a text that are joined to one map: see `windows.by_text`.
        gating: Computes the gate; None if the outputs go to the output projection as they are.
        part: Computes what `run` returns of a call that the model does not make: a part of one, or windows joined.
    """

    index: int
    module: nn.Module
    query: Float[Tensor, "batch head query d_k"]
    key: Float[Tensor, "batch group key d_k"]
    value: Float[Tensor, "batch group key d_v"]
    mask: Tensor | None
    arguments: dict[str, Any]
    original: Attend
    eager: Attend
    windows: int = 1
    gating: Callable[[], Tensor] | None = None
    part: Callable[[], Tensor] | None = None

    @property
    def gate(self) -> Float[Tensor, "batch query head d_v"] | None:
        """What the outputs of the heads are multiplied with before they are projected, if anything."""
        return None if self.gating is None else self.gating()

    def only(self, texts: Sequence[int], queries: int, keys: int) -> "AttentionCall":
        """Return the call that some texts of one length would make alone, without the padding after them."""
        every = len(texts) == len(self.query)
        part = self._part(slice(None) if every else list(texts), slice(queries), slice(keys))
        # Else blocks of rows would each copy them.
        return replace(part, key=part.key.contiguous(), value=part.value.contiguous())

    def rows(self, queries: slice | Sequence[int], keys: int | None = None) -> "AttentionCall":
        """Return the call for some query rows only, with their mask; and for the first keys, if no row sees another."""
        rows = queries if isinstance(queries, slice) else list(queries)
        return replace(self._part(slice(None), rows, slice(keys)), mask=self.mask_of(rows))

    def _part(
        self, texts: slice | list[int], rows: slice | list[int], keys: slice
    ) -> "AttentionCall":
        def part(full: Tensor) -> Tensor:
            full = full[texts] if len(full) > 1 else full
            return (full[..., rows, :] if full.shape[-2] > 1 else full)[..., keys]

        # Terms of the logits, and sinks that depend on the query.
        named = ((name, self.arguments.get(name)) for name in ("position_bias", "sinks"))
        by_row = {name: part(term) for name, term in named if isinstance(term, Tensor)}
        gating = self.gating
        return replace(
            self,
            query=self.query[texts][:, :, rows],
            key=self.key[texts][:, :, keys],
            value=self.value[texts][:, :, keys],
            mask=None if self.mask is None else part(self.mask),
            arguments=self.arguments | by_row,
            gating=gating and (lambda: gating()[texts, rows]),
            part=lambda: self.run()[texts, rows],
        )

    @property
    def has_sink(self) -> bool:
        """Whether a learnt sink, a key without value, takes part in the softmax, however little attention it gets."""
        parameters = vars(self.module)["_parameters"]
        passed = [name for name, value in self.arguments.items() if value is not None]
        return any("sink" in name or name == "s_aux" for name in (*parameters, *passed))

    @property
    def scaling(self) -> float:
        """What q · k is multiplied with: one over the root of the size of a query, unless the call has another."""
        scale = self.arguments.get("scaling")
        return self.query.shape[-1] ** -0.5 if scale is None else float(scale)

    def bias(self) -> Float[Tensor, "batch heads queries keys"] | None:
        """Return what is added to the logits and hides no key: position bias, the finite part of a mask."""
        bias, mask = self.arguments.get("position_bias"), self.mask_of()
        if mask is None or mask.dtype == torch.bool:
            return bias
        finite = mask.masked_fill(~seen_keys(mask), 0.0)
        if not finite.any():
            return bias
        return finite if bias is None else bias + finite

    def visible(self) -> Bool[Tensor, "batch row key"]:
        """Return which keys the query rows see.

        Raises:
            UnsupportedModelError: If heads of one layer see different keys.
        """
        mask, keys = self.mask_of(), self.key.shape[2]
        mask = self.key.new_ones(1, 1, 1, keys).bool() if mask is None else seen_keys(mask)
        if mask.shape[1] > 1 and not torch.equal(mask, mask[:, :1].expand_as(mask)):
            raise UnsupportedModelError(
                f"{type(self.module).__name__} gives heads of one layer different masks; "
                "identilens needs one mask per layer. Audit a model without per-head masks."
            )
        return mask[:, 0].expand(self.query.shape[0], self.query.shape[2], keys)

    def attend(self) -> tuple[Tensor, Tensor]:
        """Return output (batch, rows, heads, d_v) and weights after softmax (batch, heads, rows, m).

        They are computed by the family's eager attention.
        """
        query, arguments, mask = self.query, self.arguments, self.mask_of()
        # Families compute the softmax in float32, where the least number of float64 is minus infinity.
        least = max(torch.finfo(query.dtype).min, torch.finfo(torch.float32).min)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, least).to(query.dtype)
        elif mask is not None:
            mask = mask.clamp_min(least)
        attend = partial(self.eager, self.module, query)
        try:
            output, weights = attend(self.key, self.value, mask, **arguments)
        except RuntimeError:
            # Eager functions of some families take no keys that heads share; fused attention does.
            if self.key.shape[1] == query.shape[1]:
                raise
            output, weights = attend(*map(self.repeated, (self.key, self.value)), mask, **arguments)
        if arguments.get("s_aux") is not None and weights is not None:
            # G if the family applies its sink after the softmax, output = diag(g) A V; 1 if A includes the sink.
            values = self.repeated(self.value)
            mixed = weights.to(values.dtype) @ values
            late = (weights.float().sum(-1, keepdim=True) - 1).abs() <= SUM_ERROR
            late &= mixed.any(-1, keepdim=True)
            factor = torch.where(late, scale_of(output.transpose(1, 2), mixed), 1.0)
            weights = weights * factor.to(weights.dtype)
        return output, weights

    def mixed(self) -> Float[Tensor, "batch query head d_v"]:
        """Return the output of `attend`, of so many rows at a time that their weights fit."""
        weights = self.query[:, :, 0, 0].numel() * self.key.shape[2]
        steps = blocks(self.query.shape[2], 16 * weights, self.query.device)
        return torch.cat([self.rows(rows).attend()[0] for rows in steps], 1)

    def run(self) -> Float[Tensor, "batch query head d_v"]:
        """Return the output of the function that the model calls outside of capture; it runs once."""
        return self._ran

    @cached_property
    def _ran(self) -> Tensor:
        if self.part:
            return self.part()
        return self.original(
            self.module, self.query, self.key, self.value, self.mask, **self.arguments
        )[0]

    @property
    def is_causal(self) -> bool:
        """Whether a call without a mask is causal; else every key is visible.

        Without a mask, fused attention takes causality from the module, and eager attention sees every key.
        """
        if self.original is self.eager:
            return False
        causal = self.arguments.get("is_causal")
        causal = getattr(self.module, "is_causal", True) if causal is None else causal
        return bool(causal) and self.query.shape[-2] > 1

    def repeated(self, groups: Float[Tensor, "batch group key d"]) -> Tensor:
        """Return keys or values, those of a group once for each of its heads."""
        return groups.repeat_interleave(self.query.shape[1] // groups.shape[1], 1)

    def mask_of(self, rows: slice | list[int] = slice(None)) -> Tensor | None:
        """Return the mask of rows over the keys, also where the call has none and is causal."""
        if self.mask is not None:
            mask = self.mask[..., : self.key.shape[-2]]
            return mask[:, :, rows] if mask.shape[-2] > 1 else mask
        if not self.is_causal:
            return None
        positions = torch.arange(self.query.shape[-2], device=self.query.device)[rows]
        return (torch.arange(self.key.shape[-2], device=self.query.device) <= positions[:, None])[
            None, None
        ]


Handler = Callable[[AttentionCall], Tensor]
"""Receives each call in order and returns the attention output (batch, n, heads, d_v)."""

_calls: ContextVar[Any] = ContextVar("identilens_calls", default=None)
"""The current handler, and the numbers of the calls to come; None outside of a capture."""


@contextmanager
def intercept(model: PreTrainedModel, handler: Handler) -> Iterator[None]:
    """Send every attention call of this thread to ``handler`` inside the context.

    The implementation keeps its name, so that the model makes its usual masks and takes its usual branches. Other
    threads are not affected. The model is in evaluation mode. At the end everything is restored, also after an
    exception.
    """
    readable, switched = "sdpa" if model._supports_sdpa else "eager", nullcontext()
    if model.config._attn_implementation not in (None, *READABLE):
        switched = configured(model, "_attn_implementation_internal", readable)
    with (
        attribute([AttentionInterface], "get_interface", _chosen),
        switched,
        evaluation_mode(model),
        answered(handler),
    ):
        yield


@contextmanager
def answered(handler: Handler) -> Iterator[None]:
    """Send every attention call of this thread to a handler inside the context, within `intercept`."""
    token = _calls.set((handler, count()))
    try:
        yield
    finally:
        _calls.reset(token)


@contextmanager
def configured(model: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Set an attribute in every configuration of the model's modules that has it, inside the context."""
    with attribute(
        [config for config in configurations(model) if name in vars(config)], name, value
    ):
        yield


_evaluated: ContextVar[frozenset[nn.Module]] = ContextVar("evaluated", default=frozenset())
"""Models that are in evaluation mode for this thread."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode inside the context, and leave it as it was before.

    Autocast of the calling thread is off inside the context, and compiled modules run as they were written: what was
    compiled calls no hooks. Other threads see both. Within such a context of the same thread there is nothing
    left to do.
    """
    outer = _evaluated.get()
    if model in outer:
        yield
        return
    compiled = [module for module in model.modules() if "_compiled_call_impl" in vars(module)]
    with (
        attribute(model.modules(), "training", False),
        attribute(compiled, "_compiled_call_impl", None),
        torch.autocast(device_of(model).type, enabled=False),
        restored(model),
    ):
        token = _evaluated.set(outer | {model})
        try:
            yield
        finally:
            _evaluated.reset(token)


_choose = AttentionInterface.get_interface


def _chosen(
    interface: AttentionInterface, attn_implementation: str, default: Attend
) -> Callable[..., Any]:
    """Return the attention function that transformers chooses, or during a capture what passes its calls on."""
    attend = _choose(interface, attn_implementation, default)

    def passed_on(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # Attention over what earlier layers gave at one position is a part of the residual stream.
        if _calls.get() is None or type(module).__name__.endswith("AttentionResidual"):
            return attend(module, query, key, value, attention_mask, **arguments)
        handler, index = next_call()
        call = AttentionCall(
            index, module, query, key, value, attention_mask, arguments, attend, default
        )
        return handler(call), None

    return attend if _calls.get() is None else passed_on


def next_call() -> tuple[Handler, int]:
    """Return this thread's current handler, and the index of the next call."""
    handler, numbers = _calls.get()
    return handler, next(numbers)
