"""How much is computed at a time: as much as a device holds easily."""

import torch

PROCESSOR_BYTES, DEVICE_BYTES = 32 * 2**20, 2**30
"""Memory that one step may take: on a processor, little enough to stay near its cache."""

LARGE = 2**30
"""Memory that a large computation may take where nothing is known of what is free."""


def blocks(count: int, bytes_each: int, device: torch.device, multiple: int = 1) -> list[slice]:
    """Return the places from 0 to ``count``, so many at a time as fit, or a multiple of a number."""
    held = PROCESSOR_BYTES if device.type == "cpu" else DEVICE_BYTES
    step = max(held // max(bytes_each, 1) // multiple, 1) * multiple
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def budget_on(device: torch.device) -> int:
    """Return the bytes that a large computation may take: half of what a CUDA device has free, else 1 GiB."""
    if device.type != "cuda":
        return LARGE
    free, _ = torch.cuda.mem_get_info(device)
    return max(LARGE, free // 2)
