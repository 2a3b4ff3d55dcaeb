"""Effective attention as an attention implementation of transformers, returned by `output_attentions`."""

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from identilens.errors import UnsupportedModelError
from identilens.linalg import ProjectedValues
from identilens.models.interface import AttentionCall

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
    """Return the output of the family's eager attention and effective attention."""
    eager = _family_attention(type(module))
    output, weights = eager(module, query, key, value, attention_mask, **arguments)
    call = AttentionCall(0, module, query, key, value, attention_mask, arguments, eager, eager)
    return output, _effective(weights.detach(), call)


@torch.no_grad()
def _effective(
    weights: Float[Tensor, "batch head query key"], call: AttentionCall
) -> Float[Tensor, "batch head query key"]:
    """Return effective attention of a padded batch; rows that see no key are 0."""
    visible, effective = call.visible(), torch.zeros_like(weights)
    seen = torch.ones_like(weights[:, 0], dtype=torch.bool) if visible is None else visible
    values = call.value.repeat_interleave(weights.shape[1] // call.value.shape[1], 1)
    for text, mask in enumerate(seen):
        # Padding is removed first: then rows that see the same keys need only one projector.
        rows, keys = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        if len(rows):
            place = slice(None), rows[:, None], keys
            T = ProjectedValues.of(values[text][:, keys])
            own = T.effective(weights[text][place].double(), mask[place[1:]])
            effective[text][place] = own.to(weights.dtype)
    return effective


@cache
def _family_attention(kind: type[nn.Module]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the eager attention function that a class of attention modules uses by default.

    Raises:
        UnsupportedModelError: If the class has none, or its family chooses masks by the implementation's name.
    """
    forward = inspect.unwrap(kind.forward)
    found = _FAMILY_DEFAULT.search(inspect.getsource(forward))
    function = forward.__globals__.get(found.group(1) if found else "eager_attention_forward")
    if function is None or _BY_NAME.search(inspect.getsource(sys.modules[kind.__module__])):
        raise UnsupportedModelError(
            f"{kind.__name__} names no eager attention function, or chooses its mask by the implementation's name, so "
            f"that {EFFECTIVE} would change its output. Restore the implementation "
            '(set_attn_implementation("eager")) and use identilens.attentions(lens, text), which captures it.'
        )
    return function
