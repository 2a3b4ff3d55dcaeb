"""How much is computed at a time: as much as a device holds easily."""

import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg.tolerance import HALF

WITHOUT_DOUBLES = {"mps"}
"""Kinds of devices that have no float64: what needs it is computed on copies in the processor's memory."""

PROCESSOR_BYTES, DEVICE_BYTES = 32 * 2**20, 2**30
"""Memory that one step may take: on a processor, little enough to stay near its cache."""

LARGE = 2**30
"""Memory that a large computation may take where nothing is known of what is free."""


def blocks(count: int, bytes_each: int, device: torch.device, multiple: int = 1) -> list[slice]:
    """Return the places from 0 to ``count``, so many at a time as fit, or a multiple of a number."""
    held = PROCESSOR_BYTES if device.type == "cpu" else DEVICE_BYTES
    step = max(held // max(bytes_each, 1) // multiple, 1) * multiple
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def held_by(values: Float[Tensor, "batch group key d"], heads: int) -> int:
    """Return about how many bytes the values of so many heads, whitened values and their factors take, in float64."""
    return (16 + values.shape[-1]) * heads * values[:, 0].numel()


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one after the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def budget_on(device: torch.device) -> int:
    """Return the bytes that a large computation may take: half of what a CUDA device has free, else 1 GiB."""
    if device.type != "cuda":
        return LARGE
    free, _ = torch.cuda.mem_get_info(device)
    return max(LARGE, free // 2)


def wide(numbers: Tensor) -> Tensor:
    """Return a tensor in float64, in the processor's memory where its device has none."""
    return near(numbers).double()


def exact(numbers: Tensor) -> Tensor:
    """Return a tensor of half precision in single precision, whose rounding is far less, and any other in double."""
    return numbers.float() if numbers.dtype in HALF else wide(numbers)


def near(numbers: Tensor) -> Tensor:
    """Return a tensor on its device, or in the processor's memory where that has no float64, which is said once."""
    kind = numbers.device.type
    if kind not in WITHOUT_DOUBLES:
        return numbers
    warnings.warn(f"{kind} has no float64: ranks and programs are the processor's", stacklevel=2)
    return numbers.cpu()
