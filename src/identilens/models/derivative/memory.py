"""Measuring the memory of a computation, and choosing chunks that fit into a budget."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from identilens.errors import InputError

_USED = 0.85
"""Share of a budget that is used for tensors; the rest is for kernels and the heap."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all existing tensors that were made inside the context, and their peak.

    Memory that a kernel allocates and frees within one call is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {
            id(leaf.untyped_storage())
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._seen:
            return

        def freed(_: Any) -> None:
            self.live -= size
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


def chunk_size(
    work: Callable[[int], Any], count: int, budget: int, what: str, reserved: int = 0
) -> int:
    """Return how many of ``count`` pieces of work fit at once into a budget of bytes minus ``reserved``.

    The peak is measured for one and for two pieces; it grows by the same amount with every further piece. Memory that
    was in use before is not counted.

    Raises:
        InputError: If the budget is too small for one piece; ``what`` names a piece in the message.
    """
    peaks = []
    for pieces in (1, 2):
        with LiveBytes() as meter:
            work(pieces)
        peaks.append(meter.peak)
    step = max(peaks[1] - peaks[0], 1)
    chunk = 1 + (int(_USED * (budget - reserved)) - peaks[0]) // step
    if chunk < 1:
        needed = reserved + int(peaks[0] / _USED) + 1
        raise InputError(
            f"memory_budget={budget} bytes is too small: one {what} of this text needs {needed}. "
            "Raise the budget, or cut the text with max_length."
        )
    return min(chunk, count)
