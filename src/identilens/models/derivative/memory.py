"""Memory of a computation measured, and chunks sized so that it stays within a budget."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from identilens.errors import InputError

_USED = 0.85
"""Share of a budget that is planned with; the rest is for what kernels and the heap take beside tensors."""


class OverBudgetError(Exception):
    """More bytes are alive than were allowed."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made inside the context that are alive, and their peak.

    What single kernels allocate and free within one call is not seen. More than ``limit`` bytes are an
    `OverBudgetError`.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._limit = limit
        self._seen: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
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
        if self._limit is not None and self.live > self._limit:
            raise OverBudgetError(f"{self.live} bytes are alive; allowed are {self._limit}")


def chunk_size(work: Callable[[int], Any], count: int, budget: int, what: str, reserved: int = 0) -> int:
    """Return how many of ``count`` pieces of work may be done at once within a budget of bytes, ``reserved`` left free.

    The peak is measured for one and for two pieces; it grows by the same amount with every further piece. What was
    alive before does not count.

    Raises:
        InputError: If the budget does not hold one piece, with the name of one, ``what``.
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
