"""Choosing some of a few random numbers so that their sum is close to a target."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError

LARGEST = 32
"""Largest number of numbers to choose from: 2^16 sums for each half."""

_ENTRIES = 2**22


def closest_subsets(
    values: Float[Tensor, "case number"], targets: Float[Tensor, " case"]
) -> Bool[Tensor, "case number"]:
    """Return, for each case, the subset of its numbers whose sum is nearest to its target.

    Exact, by meeting in the middle: the sums of all subsets of one half are sorted, and each sum of the other half is
    completed by the nearest. For n numbers uniform on [−1, 1] the distance decreases about as 2^{-n} (Pensia et al.
    2020). Cost O(2^{n/2} n) per case.

    Raises:
        InputError: For more numbers than can be searched.
    """
    count = values.shape[1]
    if count > LARGEST:
        raise InputError(f"expected at most {LARGEST} numbers to choose from, got {count}; lower the width")
    size = max(1, _ENTRIES >> (count - count // 2))
    parts = zip(values.double().split(size), targets.double().split(size), strict=True)
    return torch.cat([_closest(*part) for part in parts])


def _closest(values: Tensor, targets: Tensor) -> Tensor:
    half = values.shape[1] // 2
    left, right = _choices(half), _choices(values.shape[1] - half)
    lower = values[:, :half] @ left.double().T
    upper, order = (values[:, half:] @ right.double().T).sort(1)
    missing = targets[:, None] - lower
    above = torch.searchsorted(upper, missing.contiguous()).clamp_max(upper.shape[1] - 1)
    below = (above - 1).clamp_min(0)
    distances = torch.stack([(upper.gather(1, place) - missing).abs() for place in (below, above)])
    best = distances.amin(0).argmin(1)
    rows = torch.arange(len(values))
    side = distances[:, rows, best].argmin(0)
    place = torch.stack([below, above])[side, rows, best]
    return torch.cat([left[best], right[order[rows, place]]], 1)


def _choices(count: int) -> Bool[Tensor, "subset number"]:
    """Return every subset of ``count`` numbers."""
    return (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1
