"""The one point where attention is intercepted: a function registered with transformers' attention interface."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from identilens.errors import UnsupportedModelError

NAME = "identilens"

_FAMILY_DEFAULT = re.compile(r"get_interface\(\s*[\w.]+\s*,\s*(\w+)\s*,?\s*\)")


@dataclass(frozen=True)
class AttentionCall:
    """One call of a model's attention function, padding included, as the model family makes it.

    Attributes:
        index: Position of the call within the forward pass; layers are told apart by it.
        query: Positions already applied.
        key: Not repeated over its group, as ``value``.
        mask: Boolean (True may be seen) or additive float, broadcastable to (batch, heads, n, m), or None.
        arguments: What the family passes beside (scaling, softcap, position_bias, ...).
    """

    index: int
    module: nn.Module
    query: Float[Tensor, "batch head query d_k"]
    key: Float[Tensor, "batch group key d_k"]
    value: Float[Tensor, "batch group key d_v"]
    mask: Tensor | None
    arguments: dict[str, Any]

    def only(self, text: int, queries: int, keys: int) -> "AttentionCall":
        """Return the call that one text of the batch would make by itself, padding behind it cut away."""
        mask, bias = self.mask, self.arguments.get("position_bias")
        if mask is not None:
            mask = mask[text if mask.shape[0] > 1 else 0][None]
            mask = mask[..., :queries, :keys] if mask.shape[-2] > 1 else mask[..., :keys]
        arguments = dict(self.arguments)
        if bias is not None:
            arguments["position_bias"] = bias[text if bias.shape[0] > 1 else 0][None, ..., :queries, :keys]
        query = self.query[text : text + 1, :, :queries]
        key, value = self.key[text : text + 1, :, :keys], self.value[text : text + 1, :, :keys]
        return replace(self, query=query, key=key, value=value, mask=mask, arguments=arguments)

    def rows(self, queries: Sequence[int]) -> "AttentionCall":
        """Return the call of some query rows only, with the mask that says what they see."""
        arguments, bias = dict(self.arguments), self.arguments.get("position_bias")
        if bias is not None and bias.shape[-2] > 1:
            arguments["position_bias"] = bias[..., queries, :]
        places = list(queries)
        return replace(self, query=self.query[:, :, places], mask=self._mask_rows(places), arguments=arguments)

    def visible(self, rows: slice = slice(None)) -> Bool[Tensor, "batch row key"] | None:
        """Return which keys the given query rows may use, or None when they may use every key.

        Raises:
            UnsupportedModelError: If heads of one layer see different keys.
        """
        mask = self._mask_rows(rows)
        if mask is None:
            return None
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        if seen.shape[1] > 1 and not torch.equal(seen, seen[:, :1].expand_as(seen)):
            raise UnsupportedModelError(
                f"{type(self.module).__name__} gives heads of one layer different masks; "
                "identilens needs one mask a layer. Audit a model without per-head masks."
            )
        return seen[:, 0].expand(self.query.shape[0], -1, -1)

    def attend(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return output (batch, rows, heads, d_v) and weights after softmax (batch, heads, rows, m) of query rows.

        They are what the family's own eager attention gives.
        """
        query = self.query[:, :, rows]
        mask = self._mask_rows(rows)
        if mask is not None and mask.dtype == torch.bool:
            least = max(torch.finfo(query.dtype).min, torch.finfo(torch.float32).min)
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, least)
        arguments = dict(self.arguments)
        bias = arguments.get("position_bias")
        if bias is not None and bias.shape[-2] > 1:
            arguments["position_bias"] = bias[..., rows, :]
        return family_attention(type(self.module))(self.module, query, self.key, self.value, mask, **arguments)

    def run_sdpa(self) -> Float[Tensor, "batch query head d_v"]:
        """Return the output of PyTorch's fused attention, as the model runs it outside of capture."""
        sdpa = AttentionInterface()["sdpa"]
        return sdpa(self.module, self.query, self.key, self.value, self.mask, **self.arguments)[0]

    def unmasked_pattern(self) -> Literal["causal"] | None:
        """Return what a call without a mask means: causal attention, or every key seen (None)."""
        causal = self.arguments.get("is_causal")
        causal = getattr(self.module, "is_causal", True) if causal is None else causal
        return "causal" if causal and self.query.shape[-2] > 1 else None

    def _mask_rows(self, rows: slice | list[int]) -> Tensor | None:
        if self.mask is not None:
            mask = self.mask[..., : self.key.shape[-2]]
            return mask[:, :, rows] if mask.shape[-2] > 1 else mask
        if self.unmasked_pattern() is None:
            return None
        positions = torch.arange(self.query.shape[-2], device=self.query.device)[rows]
        return (torch.arange(self.key.shape[-2], device=self.query.device) <= positions[:, None])[None, None]


Handler = Callable[[AttentionCall], Tensor]
"""Receives each call in order and returns the attention output (batch, n, heads, d_v)."""

_calls: ContextVar[tuple[Handler, list[int]] | None] = ContextVar("identilens_calls", default=None)


@contextmanager
def intercept(model: PreTrainedModel, handler: Handler) -> Iterator[None]:
    """Send every attention call of ``model`` to ``handler`` while the context lasts.

    The model is put into evaluation mode. On leaving, its attention implementation and its training
    mode are put back, also after an exception. The mask function is registered under the same name as
    the attention function: without it transformers drops padding, causality and windows.
    """
    AttentionInterface.register(NAME, _intercepted)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    token = _calls.set((handler, [0]))
    try:
        with configured(model, "_attn_implementation_internal", NAME), evaluation_mode(model):
            yield
    finally:
        _calls.reset(token)


@contextmanager
def configured(model: nn.Module, name: str, value: str) -> Iterator[None]:
    """Set an attribute of every configuration of the model's modules that has it while the context lasts."""
    modules = [vars(module) for module in model.modules()]
    configs = {id(held["config"]): held["config"] for held in modules if held.get("config") is not None}
    before = [(config, vars(config)[name]) for config in configs.values() if name in vars(config)]
    try:
        for config, _ in before:
            setattr(config, name, value)
        yield
    finally:
        for config, previous in before:
            setattr(config, name, previous)


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Put the model into evaluation mode while the context lasts; module by module as it was afterwards."""
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in training:
            module.training = mode


@cache
def family_attention(kind: type[nn.Module]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the eager attention function that a class of attention modules falls back to in its own family.

    Raises:
        UnsupportedModelError: If the class's forward method names none.
    """
    forward = inspect.unwrap(kind.forward)
    found = _FAMILY_DEFAULT.search(inspect.getsource(forward))
    name = found.group(1) if found else "eager_attention_forward"
    function = forward.__globals__.get(name)
    if function is None:
        raise UnsupportedModelError(
            f"{kind.__name__} names no eager attention function, so its weights cannot be recomputed. "
            "Define eager_attention_forward beside the module and pass it to get_interface."
        )
    return function


def _intercepted(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, None]:
    if (active := _calls.get()) is None:
        raise RuntimeError("the identilens attention implementation works only while a capture is under way")
    handler, counter = active
    call = AttentionCall(counter[0], module, query, key, value, attention_mask, arguments)
    counter[0] += 1
    return handler(call), None
