"""Intervals, certified order and the least-norm alternative: against scipy, by hand, against every sampler."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch.testing import assert_close

from helpers.heads import causal, doubles, normals, random_weights, seeded, seeds
from helpers.programs import by_clarabel
from identilens.linalg import ProjectedValues
from identilens.linalg.programs import ACCEPTED_ERROR
from identilens.measures.attention.billiard import uniform_alternatives
from identilens.measures.attention.determined import functional_ends
from identilens.measures.attention.intervals import (
    attention_intervals,
    certify_row,
)
from identilens.measures.attention.row_solver import RowSolver
from identilens.measures.attention.samplers import far_alternative, sample_alternatives
from identilens.measures.attention.simplex import simplex_space

LINE = doubles([[0.0], [1.0], [0.5]])
LINE_ROW = doubles([0.1, 0.1, 0.8])


def random_row(seed, n, d):
    generator = seeded(seed)
    T = normals(generator, n, d)
    return torch.softmax(normals(generator, n), 0), T


def scipy_ends(row, T):
    """Minimum and maximum of every weight, by programs posed to scipy one by one."""
    equations = np.c_[T.numpy(), np.ones(len(T))].T
    ends = []
    for key in range(len(row)):
        cost = np.zeros(len(row))
        cost[key] = 1.0
        ends.append(
            [
                sign
                * linprog(
                    sign * cost, A_eq=equations, b_eq=equations @ row.numpy(), method="highs"
                ).fun
                for sign in (1, -1)
            ]
        )
    return doubles(ends).T


def test_line_by_hand():
    found = attention_intervals(LINE_ROW, LINE)
    assert found.lo.tolist() == pytest.approx([0, 0, 0], abs=1e-9)
    assert found.hi.tolist() == pytest.approx([0.5, 0.5, 1.0], abs=1e-9)
    assert found.nullity == 1
    assert not certify_row(LINE_ROW, LINE).above.any()


def test_order_that_the_intervals_alone_do_not_prove():
    # Keys at 0, 1, 2 and 3, whose weight is pinned by a second value: (0.5 + t, 0.2 − 2t, 0.2 + t, 0.1).
    T = doubles([[0.0, 0], [1, 0], [2, 0], [0, 1]])
    row = doubles([0.5, 0.2, 0.2, 0.1])
    found = certify_row(row, T)
    assert found.intervals.lo.tolist() == pytest.approx([0.3, 0.0, 0.0, 0.1], abs=1e-9)
    assert found.intervals.hi.tolist() == pytest.approx([0.6, 0.6, 0.3, 0.1], abs=1e-9)
    # Key 0 keeps its lead of 0.3 over key 2, though their intervals meet.
    assert found.above.nonzero().tolist() == [[0, 2], [0, 3]]
    assert found.top is None
    assert certify_row(torch.tensor([0.9, 0.04, 0.05, 0.01]).double(), T, order=False).top == 0


@settings(max_examples=12, deadline=None)
@given(
    seed=seeds,
    n=st.integers(3, 20),
    d=st.integers(1, 8),
    sharpness=st.sampled_from([0.5, 2.0, 5.0]),
)
def test_ends_equal_scipy_one_by_one(seed, n, d, sharpness):
    A, T = random_weights(seed, n, d, sharpness)
    found = attention_intervals(A[0], T)
    lo, hi = scipy_ends(A[0], T)
    assert (found.lo - lo).abs().max() < 2e-6
    assert (found.hi - hi).abs().max() < 2e-6
    assert found.gap <= 1e-8


@settings(max_examples=12, deadline=None)
@given(
    seed=seeds,
    n=st.integers(3, 18),
    d=st.integers(1, 8),
    sharpness=st.sampled_from([0.5, 2.0, 8.0, 40.0]),
    masked=st.booleans(),
)
def test_no_alternative_leaves_its_interval_or_reverses_a_certified_pair(
    seed, n, d, sharpness, masked
):
    visible = causal(n) if masked else None
    A, T = random_weights(seed, n, d, sharpness, visible)
    query = n - 1 - seed % 2
    seen = None if visible is None else visible[query]
    found = certify_row(A[query], T, visible=seen)
    space = simplex_space(T, seen)
    drawn = [uniform_alternatives(A[query], space, 60, generator=seeded(seed))]
    drawn += [
        sample_alternatives(A, T, 20, method=method, visible=visible, generator=seeded(seed))[
            :, query
        ]
        for method in ("brunner", "bhardwaj")
    ]
    drawn.append(far_alternative(A[query], space, generator=seeded(seed))[None])
    points = torch.cat(drawn)
    lo, hi = found.intervals.lo, found.intervals.hi
    assert (lo <= A[query]).all()
    assert (A[query] <= hi).all()
    assert points.sub(lo).min() >= -ACCEPTED_ERROR
    assert hi.sub(points).min() >= -ACCEPTED_ERROR
    for j, k in torch.nonzero(found.above).tolist():
        assert (points[:, j] > points[:, k]).all()
    if found.top is not None:
        assert (points.argmax(-1) == found.top).all()
        assert int(found.above[found.top].sum()) == (n if seen is None else int(seen.sum())) - 1
    if space.nullity == 0:
        assert torch.equal(lo, hi)


@settings(max_examples=8, deadline=None)
@given(seed=seeds, n=st.integers(3, 12), d=st.integers(1, 6))
def test_order_equals_scipy_pair_by_pair(seed, n, d):
    A, T = random_weights(seed, n, d, 2.0)
    above = certify_row(A[0], T).above
    equations = np.c_[T.numpy(), np.ones(n)].T
    for j in range(n):
        for k in range(n):
            cost = np.zeros(n)
            cost[j], cost[k] = 1, -1 if j != k else 1
            least = linprog(cost, A_eq=equations, b_eq=equations @ A[0].numpy(), method="highs").fun
            if abs(least) > 1e-6 and j != k:
                assert bool(above[j, k]) == (least > 0)
        assert not above[j, j]
    full = (above.sum(-1) == n - 1).nonzero().flatten().tolist()
    assert certify_row(A[0], T, order=False).top == (full[0] if full else None)


def test_identifiable_rows_are_points_and_fully_ordered():
    A, T = random_weights(1, 8, 20)
    found = certify_row(A[3], T)
    assert_close(found.intervals.lo, A[3], atol=1e-15, rtol=0)
    assert torch.equal(found.intervals.hi, found.intervals.lo)
    assert found.top == int(A[3].argmax())
    assert int(found.above.sum()) == 8 * 7 // 2


def test_only_visible_keys_take_part():
    A, T = random_weights(4, 12, 3, visible=causal(12))
    found = certify_row(A[8], T, visible=causal(12)[8])
    alone = certify_row(A[8, :9], T[:9])
    assert torch.allclose(found.intervals.lo[:9], alone.intervals.lo, atol=1e-8)
    assert torch.allclose(found.intervals.hi[:9], alone.intervals.hi, atol=1e-8)
    assert torch.equal(found.above[:9, :9], alone.above)
    assert found.intervals.hi[9:].abs().max() == 0
    assert not found.above[9:].any()
    assert not found.above[:, 9:].any()


@pytest.mark.parametrize("d", [3, 20])
def test_the_greatest_weight_of_one_key_is_its_upper_end(d):
    A, T = random_weights(4, 9, d)
    visible = torch.arange(9) > 1
    row = A[0] * visible / A[0, visible].sum()
    hi = attention_intervals(row, T, visible=visible).hi
    assert bool((hi > row + 0.01).any()) == (d == 3)
    copies = ProjectedValues.of(T.expand(9, -1, -1))
    rows, seen = row.expand(9, -1), visible.expand(9, -1)
    greatest = functional_ends(rows, copies, torch.eye(9).double()[:, None], seen)[1]
    assert greatest[:, 0].tolist() == pytest.approx(hi.tolist(), abs=1e-8)


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_a_long_rows_programs_run_in_parts(tolerance, monkeypatch):
    row, T = random_row(5, 40, 6)
    whole = certify_row(row, T, tolerance=tolerance)
    solver = RowSolver(row, ProjectedValues.of(T).simplex_space(None))
    before = solver.ends()
    monkeypatch.setattr("identilens.measures.attention.row_solver.NUMBERS", 3 * 40)
    found = certify_row(row, T, tolerance=tolerance)
    for name in ("lo", "hi"):
        one, other = (getattr(each.intervals, name) for each in (whole, found))
        assert_close(one, other, atol=1e-7, rtol=0)
    assert found.top == whole.top
    assert torch.equal(found.above, whole.above)
    assert len(solver.ends().met) <= 13 < len(before.met)


def test_lengths_and_the_farthest_alternative():
    row, T = random_row(5, 8, 3)
    solver = RowSolver(row, simplex_space(T), among=torch.arange(8) < 4)
    point = row.flip(0)
    expected = torch.linalg.vector_norm((point - row) @ T)
    assert_close(solver.length(point), expected)
    ends = solver.ends()
    moved = [float((row - met).clamp_min(0)[:4].sum()) for met in ends.met]
    assert max(moved) > 0.01
    assert torch.equal(solver.farthest(ends), ends.met[int(np.argmax(moved))])


@pytest.mark.parametrize("seed", range(2))
def test_a_radius_is_where_a_cone_program_reaches_the_limit(seed):
    row, T = random_row(seed, 10, 3)
    start = 0.02
    solver = RowSolver(row, simplex_space(T), start)
    costs = normals(seeded(seed), 4, 10)
    costs[2] = costs[2].abs()
    costs *= torch.tensor([1, 100, 1, 1]).double()[:, None]
    below = doubles([0.1, 5.0, 0.0, 0.001])
    limits = torch.stack([torch.tensor(by_clarabel(c, row, T, start)) for c in costs]) - below
    # Signs and sums alone prove this one for any length.
    limits[2] = 0.5 * costs[2].min()
    found = solver.radius(costs, limits)
    assert found[2] == torch.inf
    for which in (0, 1, 3):
        reached = by_clarabel(costs[which], row, T, float(found[which]))
        assert limits[which] - 1e-7 <= reached <= limits[which] + 0.05 * below[which]
        assert found[which] > start
    assert solver.radius(costs[:1], limits[:1] + 1.0).tolist() == [start], "not reached"


@pytest.mark.parametrize("seed", range(2))
def test_a_proposal_is_the_least_cost_within_what_is_left_of_the_length(seed):
    row, T = random_row(seed, 10, 3)
    cost = normals(seeded(seed), 10)
    solver = RowSolver(row, simplex_space(T), 0.1)
    found = solver.proposal(cost, 0 * row, 0.06)
    assert float(cost @ found) == pytest.approx(by_clarabel(cost, row, T, 0.08), abs=1e-5)
    # The square of the length is to rise by twice the slope.
    slope = T @ doubles([0.05, -0.02, 0.03])
    found = solver.proposal(cost, slope, 0.06)
    change = found - row
    assert float(change.sum()) == pytest.approx(0, abs=1e-7)
    square = float((change @ T).square().sum() + 2 * slope @ change)
    assert square == pytest.approx(0.08**2, abs=1e-5)
    assert float(cost @ change) < 0
