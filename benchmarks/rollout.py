"""Ends of a rollout: all tokens of a text as targets of one query, and the programs of one head against HiGHS.

The reference is HiGHS used well: the model of a row is passed once, and every program starts from the last vertex.
"""

import sys
from functools import partial

import torch
from common import QUICK, machine, ratios, report, seconds, turns

import identilens as idl
from identilens.linalg.interior import SharedPrograms
from identilens.linalg.programs import RowPrograms
from identilens.models.rollouts import self_attention

TOKENS, LAYER, HEAD = 64, 2, 5


def one_by_one(kept: torch.Tensor, rows: torch.Tensor, costs: torch.Tensor) -> None:
    """Solve all programs of each row by HiGHS, each started from the last one's vertex."""
    for row in rows:
        programs = RowPrograms(row, kept)
        for cost in costs:
            programs.minimise(cost)


def together(kept: torch.Tensor, rows: torch.Tensor, costs: torch.Tensor) -> None:
    """Solve all programs at once."""
    programs = SharedPrograms(kept)
    programs.minimise_all(costs, rows, programs.corners(rows))


def main() -> int:
    print(machine())
    torch.set_num_threads(1)
    lens, text = idl.load("bundled"), " ".join(idl.examples())
    [item] = lens.read([text], TOKENS)
    head = list(list(self_attention(lens, item))[LAYER].heads)[HEAD]
    kept = head.projected.simplex_spaces(1)[0].kept
    drawn = torch.rand(16, TOKENS, generator=torch.Generator().manual_seed(0)).double()
    programs = kept, head.attention[:: 16 if QUICK else 4].double(), drawn
    reference, taken = turns([partial(one, *programs) for one in (one_by_one, together)], 3)
    claim = f"HiGHS, warm-started / identilens, rows of {TOKENS} keys, {len(drawn)} costs"
    met = report(claim, ratios(reference, taken), 1.5)
    if not QUICK:
        run = partial(idl.rollout, lens, text, queries=10, max_length=TOKENS, progress=False)
        claim = f"seconds for all {TOKENS} targets of a query on one thread"
        met &= report(claim, seconds(run), 60, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
