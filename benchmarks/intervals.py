"""Intervals of attention weights: warm-started certified programs against scipy one by one, and a whole head.

Claims checked (exit code 1 if one fails):
- one row, n = 128, d_v = 64: at most half the time of the same programs posed one by one to scipy.optimize.linprog;
- all rows of a head, n = 64, d_v = 32: within two minutes.
"""

import sys
import time

import numpy as np
import torch
from scipy.optimize import linprog

from identilens.measures.attention.intervals import attention_intervals


def random_head(n: int, d_v: int, d_k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax attention of random queries and keys, and random projected values."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(n, d_k, generator=generator, dtype=torch.float64) for _ in range(2))
    values = torch.randn(n, d_v, generator=generator, dtype=torch.float64)
    return torch.softmax(queries @ keys.T / d_k**0.5, -1), values


def by_scipy(row: torch.Tensor, values: torch.Tensor) -> np.ndarray:
    """Return (2, n): minima and maxima, every program posed anew."""
    equations = np.c_[values.numpy(), np.ones(len(values))].T
    right_side = equations @ row.numpy()
    ends = np.empty((2, len(row)))
    for key in range(len(row)):
        for side, sign in enumerate((1.0, -1.0)):
            cost = np.zeros(len(row))
            cost[key] = sign
            ends[side, key] = sign * linprog(cost, A_eq=equations, b_eq=right_side, method="highs").fun
    return ends


def main() -> int:
    torch.set_num_threads(1)
    weights, values = random_head(128, 64, 64, seed=0)
    ours, scipy_times, apart = [], [], 0.0
    for query in range(3):
        start = time.perf_counter()
        found = attention_intervals(weights[query], values)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        reference = by_scipy(weights[query], values)
        scipy_times.append(time.perf_counter() - start)
        apart = max(apart, float(np.abs(np.stack([found.lo.numpy(), found.hi.numpy()]) - reference).max()))
    ratio = min(scipy_times) / max(ours)
    print(f"one row, n = 128, d_v = 64: {max(ours):.3f} s (slowest of 3)")
    print(f"scipy.optimize.linprog one by one: {min(scipy_times):.3f} s (fastest of 3)")
    print(f"ratio {ratio:.1f} (asked for: 2); ends differ by at most {apart:.1e}")

    weights, values = random_head(64, 32, 32, seed=1)
    start = time.perf_counter()
    gap = max(attention_intervals(row, values).gap for row in weights)
    whole = time.perf_counter() - start
    print(f"all 64 rows of a head, n = 64, d_v = 32: {whole:.2f} s (asked for: 120); certified to {gap:.1e}")
    return 0 if ratio >= 2 and whole <= 120 and apart < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
