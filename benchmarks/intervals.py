"""Intervals of attention weights: programs that run together, against HiGHS one by one, each started from the last.

The reference is HiGHS used well: the model is passed once, and every program starts from the last vertex.
"""

import sys
from functools import partial

import highspy
import numpy as np
import torch
from common import QUICK, machine, ratios, report, turns

from identilens.linalg.memory import blocks
from identilens.linalg.simplex import row_space
from identilens.measures.attention.intervals import attention_intervals
from identilens.measures.attention.row_programs import RowPrograms


def random_head(n: int, d_v: int, d_k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax attention of random queries and keys, and random projected values."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (
        torch.randn(n, d_k, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    values = torch.randn(n, d_v, generator=generator, dtype=torch.float64)
    return torch.softmax(queries @ keys.T / d_k**0.5, -1), values


def warm_started(row: torch.Tensor, values: torch.Tensor) -> np.ndarray:
    """Return (2, n): minima and maxima by HiGHS, each program started from the last one's vertex."""
    equations = np.c_[values.numpy(), np.ones(len(values))].T
    solver, keys = highspy.Highs(), range(len(row))
    solver.silent()
    weights = [solver.addVariable() for _ in keys]
    for line, side in zip(equations, equations @ row.numpy(), strict=True):
        solver.addConstr(solver.qsum(line[key] * weights[key] for key in keys) == side)
    # The last vertex stays feasible when only the cost changes: primal simplex.
    solver.setOptionValue("simplex_strategy", 4)
    ends = np.empty((2, len(row)))
    for side, solve in enumerate((solver.minimize, solver.maximize)):
        for key in keys:
            solve(weights[key])
            ends[side, key] = solver.getObjectiveValue()
    return ends


def main() -> int:
    print(machine())
    met = True
    for n in (128, 512):
        weights, values = random_head(n, 64, 64, seed=0)
        row = weights[0]
        reference, taken = turns(
            [partial(warm_started, row, values), partial(attention_intervals, row, values)], 2
        )
        met &= report(
            f"HiGHS, warm-started / identilens, one row, n = {n}", ratios(reference, taken), 1.5
        )
    weights, values = random_head(128, 64, 64, seed=0)
    found, expected = attention_intervals(weights[1], values), warm_started(weights[1], values)
    apart = np.abs(np.stack([found.lo, found.hi]) - expected).max()
    met &= report("largest difference of an end from HiGHS", float(apart), 1e-6, at_least=False)

    heads = [random_head(512, 64, 64, seed) for seed in range(12)]
    rows, values = (torch.stack([*one]) for one in zip(*heads, strict=True))
    space = row_space(values, torch.ones_like(rows[:, 0], dtype=torch.bool), 1e-6)

    def ends(count: int) -> None:
        # So many heads together as certify takes.
        for part in blocks(count, 4 * 512 * 65**2, rows.device):
            inside = rows[part, 7]
            RowPrograms.of(inside, space.of(part), 0 * inside[:, 0]).ends()

    one, every = turns([partial(ends, 1), partial(ends, 12)], 1 if QUICK else 3)
    met &= report("seconds for one row, n = 512, d_v = 64", one, 3, at_least=False)
    met &= report("all 12 heads of the row / one head", ratios(every, one), 12, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
