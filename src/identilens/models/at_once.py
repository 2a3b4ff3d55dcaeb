"""How much of a batch is taken at a time: what stays in a CPU's cache, and on a GPU all of it."""

import torch

_MORE = 64


def room(size: int, device: torch.device) -> int:
    """Return how much a device takes at a time, where a CPU takes ``size``."""
    return size if device.type == "cpu" else _MORE * size


def texts_of_a_product(count: int, device: torch.device) -> list[slice]:
    """Return which texts of a batch go into one product.

    The heads of several texts do not lie evenly in memory, and are copied for a common product. A CPU takes text by
    text instead; on a GPU every call costs more than such a copy.
    """
    return slices(count, 1 if device.type == "cpu" else count)


def slices(count: int, step: int) -> list[slice]:
    """Return the places from 0 to ``count``, ``step`` at a time."""
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
