"""Effective attention as an attention implementation of transformers, returned by `output_attentions`."""

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from identilens.errors import UnsupportedModelError
from identilens.linalg import ProjectedValues
from identilens.models.interface import seen_keys

EFFECTIVE = "identilens_effective"

_FAMILY_DEFAULT = re.compile(r"get_interface\(\s*[\w.]+\s*,\s*(\w+)\s*,?\s*\)")
_BY_NAME = re.compile(r"_attn_implementation\s*(?:==\s*\"sdpa\"|in\s*\(\"eager\")")


def register_attention() -> None:
    """Register ``identilens_effective`` with transformers; creating a `Lens` does the same. Repeating it is harmless.

    After ``model.set_attn_implementation("identilens_effective")`` the model computes the same as with eager attention,
    and ``model(..., output_attentions=True).attentions`` contains effective attention (Brunner et al. 2020, Eq. 9),
    [batch, head, query, key]: each row without its part in the null space of the values V that the query sees. If a
    head's output projection W_O loses directions of V, `attentions` considers this, but this implementation does not.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> idl.register_attention()
        >>> lens.model.set_attn_implementation("identilens_effective")
        >>> batch = lens.tokenizer(idl.examples()[0], return_tensors="pt")
        >>> len(lens.model(**batch, output_attentions=True).attentions)
        6
    """
    AttentionInterface.register(EFFECTIVE, _effective_forward)
    AttentionMaskInterface.register(EFFECTIVE, eager_mask)


def _effective_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    output, weights = _family_attention(type(module))(
        module, query, key, value, attention_mask, **arguments
    )
    return output, effective_batch(weights, value, attention_mask)


@torch.no_grad()
def effective_batch(
    weights: Float[Tensor, "batch head query key"],
    values: Float[Tensor, "batch group key d_v"],
    mask: Tensor | None,
) -> Float[Tensor, "batch head query key"]:
    """Return effective attention of a padded batch; rows that see no key are 0.

    ``mask`` is boolean (True is visible) or additive, broadcastable to the weights, or None.
    """
    result = torch.zeros_like(weights)
    values = values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
    if mask is None:
        seen = torch.ones_like(weights[:1, :1], dtype=torch.bool)
    else:
        seen = seen_keys(mask[..., : weights.shape[3]]).expand(-1, -1, *weights.shape[2:])
    for text, (rows, mixed) in enumerate(zip(weights, values, strict=True)):
        visible = seen[min(text, len(seen) - 1)]
        # Heads that see the same keys are computed together.
        for heads in (
            [slice(None)]
            if len(visible) == 1
            else [slice(head, head + 1) for head in range(len(visible))]
        ):
            result[text, heads] = _projected(rows[heads], mixed[heads], visible[heads][0]).to(
                result.dtype
            )
    return result


def _projected(
    weights: Float[Tensor, "head query key"],
    values: Float[Tensor, "head key d_v"],
    visible: Bool[Tensor, "query key"],
) -> Float[Tensor, "head query key"]:
    result = torch.zeros_like(weights, dtype=torch.float64)
    # Padding is removed first: then rows that see the same keys need only one projector.
    rows, keys = visible.any(1).nonzero()[:, 0], visible.any(0).nonzero()[:, 0]
    if len(rows):
        inside = weights.double()[:, rows[:, None], keys]
        T = ProjectedValues.of(values[:, keys])
        result[:, rows[:, None], keys] = T.effective(inside, visible[rows[:, None], keys]).double()
    return result


@cache
def _family_attention(kind: type[nn.Module]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the eager attention function that a class of attention modules uses by default.

    Raises:
        UnsupportedModelError: If the class has none, or its family chooses masks by the implementation's name.
    """
    forward = inspect.unwrap(kind.forward)
    found = _FAMILY_DEFAULT.search(inspect.getsource(forward))
    function = forward.__globals__.get(found.group(1) if found else "eager_attention_forward")
    by_name = function is not None and _BY_NAME.search(
        inspect.getsource(sys.modules[kind.__module__])
    )
    if function is None or by_name:
        reason = (
            "chooses its mask by the implementation's name"
            if by_name
            else "names no eager attention function"
        )
        raise UnsupportedModelError(
            f"{kind.__name__} {reason}, so that {EFFECTIVE} would change its output. Restore the implementation "
            '(set_attn_implementation("eager")) and use identilens.attentions(lens, text), which captures it.'
        )
    return function
