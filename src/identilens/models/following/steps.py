"""Functions of torch whose steps are out of sight, by steps that can be followed."""

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from identilens.models.eager import eager_attention_forward


def einsum_in_steps(equation: Any, *operands: Any) -> Tensor | None:
    """Return an einsum that is a product of matrices, by moves of axes and one product; None for any other."""
    tensors = [leaf for leaf in tree_leaves(operands) if isinstance(leaf, Tensor)]
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    inputs, out = equation.replace(" ", "").split("->")
    if inputs.count(",") != 1:
        return None
    a, b = inputs.split(",")
    summed = [letter for letter in a if letter in b and letter not in out]
    rows, columns = (
        [letter for letter in side if letter not in other] for side, other in ((a, b), (b, a))
    )
    # No letter twice in one factor, none added up in it alone.
    known = {*rows, *columns} <= {*out} and len({*a}) + len({*b}) == len(a + b)
    if not (len(summed) == 1 and rows and columns and known):
        return None
    lead = [letter for letter in out if letter not in (rows[-1], columns[-1])]
    left = _arranged(tensors[0], a, [*lead, rows[-1], *summed])
    right = _arranged(tensors[1], b, [*lead, *summed, columns[-1]])
    order, product = "".join([*lead, rows[-1], columns[-1]]), left @ right
    return product if order == out else _arranged(product, order, out)


def _arranged(tensor: Tensor, letters: str, order: Sequence[str]) -> Tensor:
    """Return a tensor with its axes in another order; an axis without its letter has size 1."""
    axes = [letters.index(letter) for letter in order if letter in letters]
    return tensor.permute(axes)[
        tuple(slice(None) if letter in letters else None for letter in order)
    ]


def attention_in_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "batch head query d_v"]:
    """Return the output of torch's fused attention, by operations that can be followed."""
    if is_causal:
        attn_mask = query.new_ones(query.shape[-2], key.shape[-2]).tril().bool()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, torch.finfo(torch.float32).min)
    scaling = query.shape[-1] ** -0.5 if scale is None else scale
    attended = eager_attention_forward(nn.Module(), query, key, value, attn_mask, scaling)
    return attended[0].transpose(1, 2)


def multi_head_attention(
    linear: Mapping[int, nn.Module], query: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Run torch's function of that name with each of its steps in sight.

    The output projection is called as a module, one of ``linear`` layers by the ids of their weights.
    """
    texts = query.shape[1] if query.ndim == 3 else 1

    def project(joined: Tensor, weight: Tensor, _bias: Tensor | None) -> Tensor:
        return linear[id(weight)](joined.unflatten(0, (-1, texts))).flatten(0, 1)

    original: Any = nn.functional.multi_head_attention_forward
    names = {**vars(nn.functional), "has_torch_function": lambda _: False, "linear": project}
    return FunctionType(original.__code__, names, argdefs=original.__defaults__)(
        query, *args, **kwargs
    )
