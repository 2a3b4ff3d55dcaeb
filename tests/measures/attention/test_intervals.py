"""Intervals, the certified top and radii of rows: against scipy, by hand, and within tolerances."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch.testing import assert_close

from helpers.heads import causal, doubles, normals, random_weights, seeded, seeds, seen_of
from helpers.programs import LINE, LINE_ROW, by_clarabel, programs_of, random_row
from identilens.measures.attention import (
    certain_mass,
    functional_interval,
)
from identilens.measures.attention.determined import certain_weights
from identilens.measures.attention.intervals import attention_intervals


def top_of(row, T, visible=None):
    """The key that no alternative puts second, −1 for none."""
    seen = seen_of(visible, row)
    programs = programs_of(row[seen], T[seen])
    [top] = programs.top(programs.ends()).tolist()
    return top if top < 0 else int(seen.nonzero()[top])


def test_order_that_the_intervals_alone_do_not_prove():
    # Keys at 0, 1, 2 and 3, whose weight is pinned by a second value: (0.5 + t, 0.2 − 2t, 0.2 + t, 0.1).
    T = doubles([[0.0, 0], [1, 0], [2, 0], [0, 1]])
    row = doubles([0.5, 0.2, 0.2, 0.1])
    found = attention_intervals(row, T)
    assert found.lo.tolist() == pytest.approx([0.3, 0.0, 0.0, 0.1], abs=1e-9)
    assert found.hi.tolist() == pytest.approx([0.6, 0.6, 0.3, 0.1], abs=1e-9)
    # Key 0 keeps its lead of 0.3 over key 2, though their intervals meet; the middle may be above either.
    least = functional_interval(row, T, doubles([[1, 0, -1, 0], [1, -1, 0, 0], [0, 1, -1, 0]])).lo
    assert least.tolist() == pytest.approx([0.3, -0.3, -0.3], abs=1e-9)
    assert top_of(row, T) == -1
    assert top_of(doubles([0.9, 0.04, 0.05, 0.01]), T) == 0


def plain_least(cost, row, T):
    """Least value of a functional over the alternatives of a row, by a program posed to scipy."""
    equations = np.c_[T.numpy(), np.ones(len(T))].T
    right = equations @ row.numpy()
    return linprog(cost, A_eq=equations, b_eq=right, method="highs").fun


@settings(max_examples=16, deadline=None)
@given(
    seed=seeds,
    n=st.integers(3, 14),
    d=st.integers(1, 20),
    sharpness=st.sampled_from([0.5, 2.0, 8.0]),
    masked=st.booleans(),
)
def test_ends_and_order_equal_scipy_one_by_one(seed, n, d, sharpness, masked):
    visible = torch.arange(n) != seed % n if masked else torch.ones(n, dtype=torch.bool)
    A, T = random_weights(seed, n, d, sharpness, visible.expand(n, n))
    found = attention_intervals(A[0], T, visible=visible)
    row, values, eye = A[0, visible], T[visible], np.eye(int(visible.sum()))
    for name, sign in (("lo", 1), ("hi", -1)):
        ends = [sign * plain_least(sign * unit, row, values) for unit in eye]
        assert_close(getattr(found, name)[visible], doubles(ends), atol=2e-6, rtol=0)
    assert found.gap <= 1e-8
    assert not found.hi[~visible].any()
    first = int(row.argmax())
    leads = [plain_least(eye[first] - eye[k], row, values) for k in range(len(row)) if k != first]
    if abs(min(leads)) > 1e-6:
        top = int(visible.nonzero()[first]) if min(leads) > 0 else -1
        assert top_of(A[0], T, visible) == top


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_a_long_rows_programs_run_in_parts(tolerance, monkeypatch):
    row, T = random_row(5, 40, 6, 1.0)
    programs = programs_of(row, T, tolerance)
    whole = programs.ends()
    monkeypatch.setattr("identilens.measures.attention.row_programs.NUMBERS", 3 * 40)
    found = programs.ends()
    for name in ("lo", "hi"):
        assert_close(getattr(found, name), getattr(whole, name), atol=1e-7, rtol=0)
    assert torch.equal(programs.top(found), programs.top(whole))
    assert found.met.shape[1] <= 13 < whole.met.shape[1]


def test_lengths_and_the_farthest_alternative():
    row, T = random_row(5, 8, 3, 1.0)
    programs = programs_of(row, T, 0.0, torch.arange(8)[None] < 4)
    point = row.flip(0)
    expected = torch.linalg.vector_norm((point - row) @ T)
    assert_close(programs.length(point[None]), expected[None])
    ends = programs.ends()
    moved = [float((row - met).clamp_min(0)[:4].sum()) for met in ends.met[0]]
    assert max(moved) > 0.01
    assert torch.equal(programs.farthest(ends)[0], ends.met[0, int(np.argmax(moved))])


@pytest.mark.parametrize("seed", range(2))
def test_a_radius_is_where_a_cone_program_reaches_the_limit(seed):
    row, T = random_row(seed, 10, 3, 1.0)
    start = 0.02
    programs, first = programs_of(row, T, start), torch.tensor([0])
    costs = normals(seeded(seed), 4, 10)
    costs[2] = costs[2].abs()
    costs *= torch.tensor([1, 100, 1, 1]).double()[:, None]
    below = doubles([0.1, 5.0, 0.0, 0.001])
    limits = torch.stack([torch.tensor(by_clarabel(c, row, T, start)) for c in costs]) - below
    # Signs and sums alone prove this one for any length.
    limits[2] = 0.5 * costs[2].min()
    [found] = programs.radius(costs[None], limits[None], first)
    assert found[2] == torch.inf
    for which in (0, 1, 3):
        reached = by_clarabel(costs[which], row, T, float(found[which]))
        assert limits[which] - 1e-7 <= reached <= limits[which] + 0.05 * below[which]
        assert found[which] > start
    beyond = programs.radius(costs[None, :1], limits[None, :1] + 1.0, first)
    assert beyond.tolist() == [[start]], "not reached"


@pytest.mark.parametrize("seed", range(2))
def test_a_proposal_is_the_least_cost_within_what_is_left_of_the_length(seed):
    row, T = random_row(seed, 10, 3, 1.0)
    cost = normals(seeded(seed), 10)
    programs = programs_of(row, T, 0.1)
    found = programs.proposal(cost, 0 * row, 0.06)
    assert float(cost @ found) == pytest.approx(by_clarabel(cost, row, T, 0.08), abs=1e-5)
    # The square of the length is to rise by twice the slope.
    slope = T @ doubles([0.05, -0.02, 0.03])
    found = programs.proposal(cost, slope, 0.06)
    change = found - row
    assert float(change.sum()) == pytest.approx(0, abs=1e-7)
    square = float((change @ T).square().sum() + 2 * slope @ change)
    assert square == pytest.approx(0.08**2, abs=1e-5)
    assert float(cost @ change) < 0


TOLERANCES = (0.0, 2**-24, 2**-8, 0.02, 0.1, 1.0)


def line(tolerance):
    return attention_intervals(LINE_ROW, torch.tensor(LINE).double()[:, None], tolerance=tolerance)


def test_line_by_hand():
    """Keys at 0, 1 and 1/2, weights .2, .2, .6: the output is .5, so that a tolerance of .1 lets it be .45 to .55."""
    found = line(0.1)
    assert found.tolerance == 0.1
    # Least of the third: all on the ends. Most of the first: output .45, nothing on the third.
    assert found.lo.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-8)
    assert found.hi.tolist() == pytest.approx([0.55, 0.55, 1.0], abs=1e-7)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("n", "d"), [(12, 4), (20, 19), (9, 16)])
def test_wider_with_the_tolerance_and_exact_without(n, d, masked):
    row, T = random_row(n, n, d, 3.0)
    visible = None
    if masked:
        visible = causal(n)[n - 3]
        row = (row * visible) / (row * visible).sum()
    exact = attention_intervals(row, T, visible=visible)
    nearly = attention_intervals(row, T, visible=visible, tolerance=1e-10)
    for side in ("lo", "hi"):
        assert_close(getattr(nearly, side), getattr(exact, side), atol=1e-7, rtol=0)
    found = [attention_intervals(row, T, visible=visible, tolerance=one) for one in TOLERANCES]
    for narrow, wide in pairwise(found):
        assert (wide.lo <= narrow.lo + 1e-8).all()
        assert (wide.hi >= narrow.hi - 1e-8).all()
        assert wide.gap <= 1e-7
    if masked:
        assert (found[-1].hi[~visible] == 0).all()


def test_short_text_is_determined_exactly_and_not_up_to_rounding():
    """With fewer keys than directions the output fixes every weight, but not once it is rounded."""
    row, T = random_row(0, 24, 32, 1.0)
    T[:, 20:] *= 1e-3  # the last directions hardly matter to the output
    assert float(certain_mass(row[None], T)) == pytest.approx(1.0, abs=1e-9)
    assert float(certain_mass(row[None], T, tolerance=2**-8)) < 0.9


@pytest.mark.parametrize("tolerance", [2**-8, 0.1])
def test_certain_mass_alone_and_together(tolerance):
    rows = torch.stack([random_row(seed, 24, 6, 4.0)[0] for seed in range(12)])
    T = random_row(99, 24, 6, 1.0)[1]
    together = certain_weights(rows, T, tolerance=tolerance)
    alone = torch.cat([certain_weights(row[None], T, tolerance=tolerance) for row in rows])
    assert_close(together, alone, atol=1e-7, rtol=0)
    ends = torch.stack([attention_intervals(row, T, tolerance=tolerance).lo for row in rows])
    assert_close(together, ends, atol=1e-7, rtol=0)


def test_a_row_without_output_does_not_speak_for_the_others():
    T = random_row(0, 10, 9, 1.0)[1]
    T[1] = -T[0]
    rows = torch.stack([random_row(seed, 10, 9, 1.0)[0] for seed in range(9)])
    rows[0] = 0.0
    rows[0, :2] = 0.5
    found = certain_mass(rows, T, tolerance=0.1)
    alone = [attention_intervals(row, T, tolerance=0.1).lo.sum() for row in rows[1:]]
    assert_close(found[1:], torch.stack(alone), atol=1e-6, rtol=0)
    assert float(found[1:].max()) < 0.9
