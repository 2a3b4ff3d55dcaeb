"""Certificates up to a tolerance: our cone programs against Clarabel, alone and for all heads of a row together.

Clarabel gets every program as it is, on T itself, as its users would pose it. Then how long a decoder's answer takes to
linearise.
"""

import sys
from functools import partial
from itertools import product
from typing import Any

import clarabel
import numpy as np
import torch
from common import QUICK, machine, ratios, report, seconds, turns
from intervals import random_head
from scipy.sparse import csc_matrix

import identilens as idl
from identilens.measures.attention import attention_intervals
from identilens.models.outcome import Answer
from identilens.studies.outcomes import of_layer, row_programs

CLARABEL: Any = clarabel  # compiled, without types


def by_clarabel(
    costs: torch.Tensor,
    row: torch.Tensor,
    values: torch.Tensor,
    blocks: torch.Tensor,
    allowed: float,
) -> np.ndarray:
    """Return the least of each cost over rows whose outputs' sum changes by no more than is allowed."""
    n, d = values.shape
    sums = torch.nn.functional.one_hot(blocks).double().T.numpy()
    left = csc_matrix(np.vstack([sums, -np.eye(n), np.zeros((1, n)), -values.T.numpy()]))
    right = np.concatenate([sums @ row.numpy(), np.zeros(n), [allowed], -(row @ values).numpy()])
    cones = [CLARABEL.ZeroConeT(len(sums)), CLARABEL.NonnegativeConeT(n)]
    cones += [CLARABEL.SecondOrderConeT(d + 1)]
    options = CLARABEL.DefaultSettings()
    options.verbose = False
    square, least = csc_matrix((n, n)), []
    for cost in costs.numpy():
        solver = CLARABEL.DefaultSolver(square, cost, left, right, cones, options)
        least.append(solver.solve().obj_val)
    return np.array(least)


def one_row() -> bool:
    """Compare both ends of each weight of a row of 128 keys, d_v = 64, at a change of 1 %."""
    weights, values = random_head(128, 64, 64, seed=0)
    row, units = weights[0], torch.eye(128).double()
    allowed = 0.01 * float(torch.linalg.norm(row @ values))
    costs = torch.cat([units, -units])
    one = torch.zeros(128, dtype=torch.int64)
    ours = partial(attention_intervals, row, values, tolerance=0.01)
    reference, taken = turns(
        [partial(by_clarabel, costs, row, values, one, allowed), ours], 1 if QUICK else 3
    )
    met = report("Clarabel / identilens, one row, n = 128", ratios(reference, taken), 1.5)
    met &= report("seconds, exact ends of that row", taken, 1, at_least=False)
    found, least = ours(), by_clarabel(costs, row, values, one, allowed)
    ends = torch.cat([found.lo, -found.hi]).numpy()
    return met & report("largest difference", np.abs(ends - least).max(), 1e-6, at_least=False)


def one_layer() -> bool:
    """Compare lower ends of some keys of a row of 12 heads, n = 110, at 1 % of the layer's output."""
    lens = idl.load("bundled")
    [item] = lens.read([" ".join(idl.examples())], 110)
    heads = list(lens.layer(item, 2).heads)
    kept = of_layer(heads, 0, 37)
    values = torch.cat([one.values.double() @ one.row_projection(37) for one in heads])
    blocks = torch.arange(len(heads)).repeat_interleave(110)
    order = kept.row.argsort(descending=True)
    allowed = kept.length(0.01)
    costs = torch.eye(len(kept.row)).double()[order[: 1 if QUICK else 3]]
    programs = row_programs([kept], [0.01])
    reference, taken = turns(
        [
            partial(by_clarabel, costs, kept.row, values, blocks, allowed),
            partial(programs.optima, costs[None]),
        ],
        1,
    )
    met = report("Clarabel / identilens, 12 heads together", ratios(reference, taken), 1.5)
    most = int((kept.row[order].cumsum(0) < 0.9 * kept.row.sum()).sum()) + 1
    met &= report(
        "seconds for both of their ends", 2 * most * taken[0] / len(costs), 60, at_least=False
    )
    apart = programs.optima(costs[None]).bounds[0].numpy() - by_clarabel(
        costs, kept.row, values, blocks, allowed
    )
    met &= report("largest difference", abs(apart).max(), 1e-6, at_least=False)
    return met


def answer() -> bool:
    """Time how the bundled decoder's prediction depends on all heads of a row, n = 128."""
    lens = idl.load("bundled-decoder")
    [item] = lens.read([" ".join(idl.examples())], 128)
    last = item.length - 1
    heads = list(product(range(4), range(8)))
    taken = seconds(lambda: Answer(lens, item, "prediction", [last]).linearised(heads, last))
    return report("seconds to linearise all heads of a row", taken, 60, at_least=False)


def main() -> int:
    print(machine())
    torch.set_num_threads(1)
    met = [part() for part in (one_row, one_layer)]
    torch.set_num_threads(2)
    return 0 if all([*met, answer()]) else 1


if __name__ == "__main__":
    sys.exit(main())
