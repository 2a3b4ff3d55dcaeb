"""When a singular value counts as zero: one rule for the whole package."""

from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
"""Precisions whose rounding errors would change ranks, intervals and alternatives."""

FLOAT32_EPS = 1.1920929e-07
"""Machine epsilon of float32, the precision in which models compute their values."""


def relative_tolerance(n: int | Tensor, d_model: int) -> Any:
    """Return the share of the largest singular value below which a singular value counts as zero.

    ``max(n, d_model) * eps`` with the eps of float32 (Bhardwaj et al. 2021, footnote 4). The values come from a float32
    forward pass, so weaker directions are rounding, also when the rank is computed in higher precision. The ranked
    matrix has n rows (tokens) and d_model columns; several matrices have several n.
    """
    if isinstance(n, Tensor):
        return n.clamp_min(d_model).double() * FLOAT32_EPS
    return max(n, d_model) * FLOAT32_EPS
