"""Linear programs of a row against scipy one by one and by hand; the least-norm program against its conditions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from helpers.heads import doubles, normals, seeded, seeds
from helpers.programs import LINE, LINE_ROW, kept_basis, random_row
from identilens.errors import NumericalError
from identilens.linalg.interior import SharedPrograms
from identilens.linalg.programs import ACCEPTED_ERROR, RowPrograms


@pytest.mark.parametrize(
    ("cost", "least"),
    [([1.0, 0, 0], 0.0), ([-1.0, 0, 0], -0.5), ([0, 0, 1.0], 0.0), ([0, 0, -1.0], -1.0)],
)
def test_line_by_hand(cost, least):
    optimum = RowPrograms(LINE_ROW, kept_basis(LINE)).minimise(doubles(cost))
    assert optimum.value == pytest.approx(least, abs=1e-12)
    assert optimum.bound <= optimum.value


def test_values_that_say_nothing_leave_the_whole_simplex():
    row = torch.full((6,), 1 / 6, dtype=torch.float64)
    cost = doubles([3.0, 1.0, -2.0, 5.0, 0.0, 1.0])
    optimum = RowPrograms(row, torch.full((6, 1), 6**-0.5, dtype=torch.float64)).minimise(cost)
    assert optimum.value == pytest.approx(-2.0)
    assert optimum.point.tolist() == pytest.approx([0, 0, 1, 0, 0, 0])


@settings(max_examples=15, deadline=None)
@given(
    seed=seeds,
    n=st.integers(2, 30),
    d=st.integers(1, 12),
    sharpness=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_warm_started_programs_equal_scipy_one_by_one(seed, n, d, sharpness):
    row, T = random_row(seed, n, min(d, n - 1), sharpness)
    kept = kept_basis(T)
    programs = RowPrograms(row, kept)
    generator = seeded(seed + 1)
    for _ in range(5):
        cost = normals(generator, n)
        optimum = programs.minimise(cost)
        reference = linprog(
            cost.numpy(), A_eq=kept.T.numpy(), b_eq=(kept.T @ row).numpy(), method="highs"
        )
        assert optimum.value == pytest.approx(reference.fun, abs=1e-6)
        assert optimum.bound <= float(cost @ row) + 1e-12
        assert optimum.value - optimum.bound <= ACCEPTED_ERROR * max(1.0, float(cost.abs().max()))
        assert optimum.point.min() >= 0
        assert (kept.T @ (optimum.point - row)).abs().max() <= ACCEPTED_ERROR
    assert programs.solved >= 5


def test_a_program_on_which_the_primal_method_stalls_is_solved_by_the_dual_one():
    row, T = random_row(3, 800, 64, 3.0)
    programs = RowPrograms(row, kept_basis(T))
    limit = 2 * (800 + 65)
    stalled = 0
    for key in row.topk(12).indices:
        cost = torch.zeros(800).double()
        cost[key] = 1.0
        before = programs.solved
        optimum = programs.minimise(cost)
        again = programs.solved - before == 2
        stalled += again
        assert programs._solver.getInfo().simplex_iteration_count <= limit or again
        fresh = RowPrograms(row, kept_basis(T)).minimise(cost)
        assert optimum.value == pytest.approx(fresh.value, abs=1e-8)
    assert stalled


def test_infeasible_numbers_are_reported():
    with pytest.raises(NumericalError, match="Infeasible"):
        RowPrograms(torch.tensor([-1.0, 0.0, 0.0]).double(), kept_basis(LINE)).minimise(
            torch.ones(3).double()
        )


def test_unbounded_numbers_are_reported():
    kept = doubles([[1.0], [-1.0]]) / 2**0.5
    with pytest.raises(NumericalError, match="status"):
        RowPrograms(torch.tensor([0.5, 0.5]).double(), kept).minimise(-torch.ones(2).double())


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
    assert found.point.tolist() == pytest.approx(least, abs=1e-12)
    assert found.gap <= 1e-12


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
    assert found.point.min() >= 0
    assert found.error <= 1e-12
    assert found.gap <= 1e-12
    assert np.abs(found.point.numpy() - reference.x).max() < 1e-5
    assert float(found.point @ found.point) <= reference.x @ reference.x + 1e-7


def test_least_norm_of_a_row_that_is_nearly_one_hot_is_proven():
    row, T = random_row(174, 30, 10, 30.0)
    found = SharedPrograms(kept_basis(T)).least_norm(row)
    assert found.gap <= 1e-12
    assert found.error <= 1e-12


def test_a_row_that_is_not_of_least_norm_is_not_taken_for_one(monkeypatch):
    """The dual bound of the right multipliers lies below it."""
    row, T = random_row(3, 20, 6, 3.0)
    programs = SharedPrograms(kept_basis(T))
    least = programs.least_norm(row).point.square().sum() / 2
    monkeypatch.setattr(SharedPrograms, "within", lambda self, points, rows, reach: rows)
    with pytest.raises(NumericalError, match=rf"duality gap {row.square().sum() / 2 - least:.1e}"):
        programs.least_norm(row)
