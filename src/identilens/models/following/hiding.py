"""Masks that a model adds to its logits: which keys they hide."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

HIDDEN = 9000.0
"""A term this far below zero is a mask; masks in use add -10,000 or less."""


def hidden_by(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], logits: Tensor, result: Tensor
) -> Bool[Tensor, "..."] | None:
    """Return the entries that one operation on logits hides, in the shape of its result; None if it hides none.

    ``args`` and ``kwargs`` are those of the operation, of which ``logits`` is an operand.
    """
    others = [one for one in (*args, *kwargs.values()) if one is not logits]
    if name == "masked_fill":
        mask, value = others[0], others[1]
        hidden = mask if _hides(value, logits).all() else None
    elif name == "where":
        condition, value = others[0], others[1]
        replaced = ~condition if args[1] is logits else condition
        hidden = replaced & _hides(value, logits)
    elif name in ("add", "sub", "min", "minimum") and others and isinstance(others[0], Tensor):
        term = -others[0] if name == "sub" else others[0]
        hidden = _hides(term, logits)
    else:
        hidden = None
    if hidden is None or not bool(hidden.any()):
        return None
    return hidden.expand(result.shape)


def _hides(value: Tensor | float, logits: Tensor) -> Bool[Tensor, "..."]:
    return torch.as_tensor(value, device=logits.device) <= -HIDDEN
