"""Random numbers of a seed."""

import torch
from torch import Tensor


def seeded(seed: int) -> torch.Generator:
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)


def uniforms(generator: torch.Generator, *shape: int) -> Tensor:
    """Return numbers uniform on [0, 1), in double precision."""
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def normals(generator: torch.Generator, *shape: int) -> Tensor:
    """Return standard normal numbers in double precision."""
    return torch.randn(*shape, dtype=torch.float64, generator=generator)
