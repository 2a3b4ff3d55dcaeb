"""Linear programs of a row against scipy one by one and by hand; the least-norm program against its conditions."""

import pytest
import torch

from helpers.programs import LINE, LINE_ROW, kept_basis
from identilens.errors import NumericalError
from identilens.linalg.interior import SharedPrograms
from identilens.linalg.programs import by_simplex


@pytest.mark.parametrize(
    ("cost", "least"),
    [([1.0, 0, 0], 0.0), ([-1.0, 0, 0], -0.5), ([0, 0, 1.0], 0.0), ([0, 0, -1.0], -1.0)],
)
def test_line_by_hand(cost, least):
    cost, kept = torch.tensor(cost, dtype=torch.float64), kept_basis(LINE)
    point, multipliers = by_simplex(cost, LINE_ROW, kept)
    assert float(cost @ point) == pytest.approx(least, abs=1e-12)
    proven = SharedPrograms(kept).proven(cost[None], LINE_ROW[None], multipliers[None])
    assert float(proven[0]) == pytest.approx(least, abs=1e-12)


def test_infeasible_numbers_are_reported():
    with pytest.raises(NumericalError, match="infeasible"):
        by_simplex(
            torch.ones(3).double(), torch.tensor([-1.0, 0.0, 0.0]).double(), kept_basis(LINE)
        )
