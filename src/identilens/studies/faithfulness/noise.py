"""What another rounding changes: effects up to this noise floor are none."""

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import FLOAT32_EPS

ROUNDINGS = 8
"""Roundings with which a noise floor is measured."""


def roundings(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Float[Tensor, "rounding *shape"]:
    """Return factors 1 + ε u, with u uniform on [−1, 1] and ε that of the precision, at least that of float32.

    Models in float64 compute their softmax in float32.
    """
    eps, generator = max(torch.finfo(dtype).eps, FLOAT32_EPS), torch.Generator().manual_seed(seed)
    return 1 + eps * (2 * torch.rand(ROUNDINGS, *shape, generator=generator, dtype=torch.float64) - 1)
