"""Certain mass of whole maps of the bundled encoder against linprog one by one.

One text of 128 tokens, all rows of all 72 heads. The reference takes the lower ends of one row of every twelfth head.
"""

import sys
import time

import numpy as np
from common import QUICK, machine, report
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
TOKENS = 128
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def by_scipy(row: np.ndarray, kept: np.ndarray) -> float:
    """Return the sum of the lower ends, every program posed anew."""
    costs, right = np.eye(len(row)), kept.T @ row
    ends = [
        linprog(cost, A_eq=kept.T, b_eq=right, method="highs", options=TIGHT).fun for cost in costs
    ]
    return sum(ends)


def main() -> int:
    print(machine())
    lens = idl.load(idl.bundled_model())
    [text] = lens.capture([f"{WORDS} {WORDS}"], max_length=TOKENS, weights=True)
    heads = [(head.attention, head.projected) for head in text.heads]
    used = heads[::12] if QUICK else heads
    share = len(heads) / len(used)
    start = time.perf_counter()
    exact = [certain_mass(rows, T) for rows, T in used]
    whole = share * (time.perf_counter() - start)
    reference, apart = 0.0, 0.0
    compared = range(0, len(used), max(1, len(used) // 6))
    for place in compared:
        rows, T = used[place]
        start = time.perf_counter()
        expected = by_scipy(rows[60].numpy(), T.simplex_space().kept.numpy())
        reference += time.perf_counter() - start
        apart = max(apart, abs(float(exact[place][60]) - expected))
    per_row = whole / (len(heads) * TOKENS)
    met = report("seconds, exact, all rows of 72 heads", whole, 150, at_least=False)
    met &= report("linprog one by one / identilens, a row", reference / len(compared) / per_row, 8)
    met &= report("largest difference from linprog", apart, 1e-7, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
