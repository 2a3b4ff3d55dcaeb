"""Certain mass of rows of the bundled encoder: one solver a row, against scipy's linprog one by one.

Claims checked (exit code 1 if one fails):
- one text of 100 tokens, all 72 heads, 4 rows each: at most 15 s;
- a row: at least 5 times as fast as its lower ends by scipy.optimize.linprog, and equal to 1e-7.
"""

import sys
import time

import numpy as np
from common import machine, report
from scipy.optimize import linprog

import identilens as idl
from identilens.measures.attention import certain_mass

WORDS = (
    "The river had risen during the night, and by morning the lower meadow lay under a sheet of brown water in which "
    "the fence posts stood like the teeth of a broken comb. Nobody in the village was surprised, because the old "
    "people had said for weeks that the ice in the hills would go at once, and that the mill would stand in the water "
    "up to its second floor. The miller himself had carried his sacks to the church and slept among them, and when the "
    "children came to see the flood he sold them bread."
)
ROWS = (5, 30, 60, 90)
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def by_scipy(row: np.ndarray, kept: np.ndarray) -> float:
    """Return the sum of the lower ends, every program posed anew."""
    costs, right = np.eye(len(row)), kept.T @ row
    ends = [linprog(cost, A_eq=kept.T, b_eq=right, method="highs", options=TIGHT).fun for cost in costs]
    return sum(ends)


def main() -> int:
    print(machine())
    lens = idl.load(idl.bundled_model())
    [text] = lens.capture([WORDS], max_length=100, weights=True)
    heads = [(head.attention[list(ROWS)], head.projected) for head in text.heads]
    start = time.perf_counter()
    found = [certain_mass(rows, T) for rows, T in heads]
    ours = time.perf_counter() - start
    reference, apart = 0.0, 0.0
    compared = range(0, len(heads), 12)
    for place in compared:
        rows, T = heads[place]
        start = time.perf_counter()
        expected = by_scipy(rows[1].numpy(), T.simplex_space().kept.numpy())
        reference += time.perf_counter() - start
        apart = max(apart, abs(float(found[place][1]) - expected))
    per_row = ours / (len(heads) * len(ROWS))
    print(f"{len(heads)} heads, {len(ROWS)} rows each: {ours:.1f} s, {1e3 * per_row:.0f} ms a row of 100 keys")
    met = report("seconds for one text", ours, 15, at_least=False)
    met &= report("linprog one by one over one solver a row", reference / len(compared) / per_row, 5)
    met &= report("largest difference from linprog", apart, 1e-7, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
