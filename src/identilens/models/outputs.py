"""Comparing a model's outputs for the same batch in two runs, without padding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from identilens.linalg.memory import wide
from identilens.models.capture import Lengths
from identilens.models.inputs import Item


def relative(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest finite expected entry; NaN if anything is NaN."""
    if not expected.numel():
        return 0.0
    # Infinite entries that are the same do not differ.
    error = wide((actual - expected).masked_fill_(actual == expected, 0.0).abs_().max())
    size = wide(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()).clamp_min(1e-12)
    return float(error / size)


def deviation(plain: Any, other: Any, lengths: Lengths, items: Sequence[Item]) -> float:
    """Return the largest relative difference of any tensor of two model outputs on one text."""
    errors = [0.0]
    others = dict(_tensors(other))
    for name, expected in _tensors(plain):
        # Under capture a family reports no weights, also if its configuration requests them.
        if name not in others and "attentions" in name:
            continue
        for text in range(len(items)):
            part = _index(name, expected, text, lengths, items)
            if part is not None:
                errors.append(relative(others[name][part], expected[part]))
    # Unlike Python's, torch's largest is NaN if any is.
    return float(torch.tensor(errors, dtype=torch.float64).max())


def _tensors(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every floating point tensor of a model output, named by its path."""
    if isinstance(output, Mapping):
        for key, value in output.items():
            yield from _tensors(value, f"{name}.{key}")
        return
    for index, leaf in enumerate(tree_leaves(output)):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield f"{name}.{index}", leaf


def _index(name: str, tensor: Tensor, text: int, lengths: Lengths, items: Sequence[Item]) -> Any:
    """Return the index of a text's part of a tensor; None if there is no part without padding."""
    if len(items) == 1:
        return ...
    if tensor.ndim < 2 or len(tensor) != len(items):
        return None
    sequence = (
        "decoder" if "decoder" in items[0].tokens and not name.startswith(".encoder") else "encoder"
    )
    if tensor.ndim == 2:
        return None if lengths.padded else text
    return text, slice(lengths.kept(text, sequence, tensor.shape[1]))
