"""Rows and values for linear programs."""

import torch

# Keys at 0, 1 and 1/2 on a line: (0.2, 0.2, 0.6) has the alternatives (0.2 + t, 0.2 + t, 0.6 − 2t), |t − 0.05| <= 0.25.
LINE = [0.0, 1.0, 0.5]
LINE_ROW = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)


def kept_basis(T):
    """Orthonormal basis of [T, 1], by plain QR."""
    T = torch.as_tensor(T, dtype=torch.float64).reshape(len(T), -1)
    return torch.linalg.qr(torch.cat([torch.ones(len(T), 1, dtype=torch.float64), T], 1)).Q


def random_row(seed, n, d, sharpness):
    """A row of softmax attention, and values of n keys."""
    generator = torch.Generator().manual_seed(seed)
    T = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return torch.softmax(sharpness * torch.randn(n, generator=generator, dtype=torch.float64), 0), T
