"""Linear programs of a row against scipy one by one and by hand; the least-norm program against its conditions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from helpers.heads import seeds
from helpers.programs import LINE, LINE_ROW, kept_basis, random_row
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


@pytest.mark.parametrize(
    ("T", "row", "least"),
    [
        (
            LINE,
            LINE_ROW,
            [1 / 3, 1 / 3, 1 / 3],
        ),  # the uniform distribution is among the alternatives
        (
            [0.0, 1.0, 10.0],
            [0.9, 0.1, 0.0],
            [0.9, 0.1, 0.0],
        ),  # (0.9 + 9t, 0.1 − 10t, t): the edge t = 0
        (
            [0.0, 1.0, 3.0],
            [0.5, 0.5, 0.0],
            [0.5 + 1 / 14, 0.5 - 3 / 28, 1 / 28],
        ),  # (0.5 + 2t, 0.5 − 3t, t): t = 1/28
    ],
)
def test_least_norm_by_hand(T, row, least):
    weights = torch.as_tensor(row, dtype=torch.float64)
    found = SharedPrograms(kept_basis(T)).least_norm(weights)
    assert found.tolist() == pytest.approx(least, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=seeds, n=st.integers(3, 25), sharpness=st.sampled_from([0.5, 3.0, 8.0]))
def test_least_norm_equals_a_general_solver(seed, n, sharpness):
    row, T = random_row(seed, n, max(1, n // 3), sharpness)
    kept = kept_basis(T)
    found = SharedPrograms(kept).least_norm(row)
    reference = minimize(
        lambda x: x @ x / 2,
        row.numpy(),
        jac=lambda x: x,
        bounds=[(0, None)] * n,
        constraints={
            "type": "eq",
            "fun": lambda x: kept.T.numpy() @ (x - row.numpy()),
            "jac": lambda x: kept.T.numpy(),
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert found.min() >= 0
    assert ((found - row) @ kept).abs().max() <= 1e-12
    assert np.abs(found.numpy() - reference.x).max() < 1e-5
    assert float(found @ found) <= reference.x @ reference.x + 1e-7


def test_least_norm_of_a_row_that_is_nearly_one_hot_is_proven():
    row, T = random_row(174, 30, 10, 30.0)
    kept = kept_basis(T)
    found = SharedPrograms(kept).least_norm(row)
    assert ((found - row) @ kept).abs().max() <= 1e-12


def test_a_row_that_is_not_of_least_norm_is_not_taken_for_one(monkeypatch):
    """The dual bound of the right multipliers lies below it."""
    row, T = random_row(3, 20, 6, 3.0)
    programs = SharedPrograms(kept_basis(T))
    least = programs.least_norm(row).square().sum() / 2
    monkeypatch.setattr(SharedPrograms, "within", lambda self, points, rows, reach: rows)
    with pytest.raises(NumericalError, match=rf"duality gap {row.square().sum() / 2 - least:.1e}"):
        programs.least_norm(row)
