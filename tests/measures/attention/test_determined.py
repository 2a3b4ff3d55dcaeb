"""Certain mass and functional intervals: against scipy, against every vertex, against what samplers find."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch.testing import assert_close

from helpers.heads import (
    causal,
    doubles,
    load_encoder,
    normals,
    random_weights,
    real_head,
    seeded,
    seeds,
    seen_of,
)
from helpers.programs import programs_of
from identilens.linalg import ProjectedValues
from identilens.measures.attention import (
    attention_intervals,
    certain_mass,
    functional_interval,
    simplex_space,
)
from identilens.measures.attention.determined import certain_weights

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def vertices(row, T):
    """Every vertex of the row's alternatives: all choices of as many keys as there are independent equations."""
    equations = np.c_[np.ones(len(row)), T.numpy()].T
    equations = equations[: np.linalg.matrix_rank(equations)]
    right = equations @ row.numpy()
    found = []
    for size in range(1, len(equations) + 1):
        for keys in map(list, combinations(range(len(row)), size)):
            part, *_ = np.linalg.lstsq(equations[:, keys], right, rcond=None)
            if part.min() >= -1e-12 and np.abs(equations[:, keys] @ part - right).max() < 1e-12:
                point = np.zeros(len(row))
                point[keys] = part
                found.append(point)
    return np.array(found)


def lower_ends(row, kept):
    right = (kept.mT @ row).numpy()
    costs = np.eye(len(row))
    solved = [
        linprog(cost, A_eq=kept.mT.numpy(), b_eq=right, method="highs", options=TIGHT)
        for cost in costs
    ]
    return np.array([one.fun for one in solved])


@settings(max_examples=15, deadline=None)
@given(
    seed=seeds,
    n=st.integers(2, 25),
    d=st.integers(1, 8),
    sharpness=st.sampled_from([0.5, 3.0, 12.0]),
)
def test_certain_mass_is_the_sum_of_the_lower_ends(seed, n, d, sharpness):
    A, T = random_weights(seed, n, d, sharpness)
    query = seed % n
    expected = lower_ends(A[query], simplex_space(T).kept).sum()
    assert float(certain_mass(A[query, None], T)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("layer", "head"), [(1, 11), (3, 10), (5, 3)])
def test_rows_together_equal_rows_alone(bundled_path, layer, head):
    found = real_head(*load_encoder(bundled_path), layer, head)
    T = ProjectedValues.of(found.values, found.output_projection)
    places = [0, 7, 15, 22, 30, 38, 41, 45]
    rows = found.weights[places]
    together = certain_weights(rows, T)
    alone = torch.cat([certain_weights(row[None], T) for row in rows])
    assert_close(together, alone, atol=1e-8, rtol=0)


@settings(max_examples=3, deadline=None)
@given(
    seed=seeds, n=st.integers(8, 20), d=st.integers(1, 6), sharpness=st.sampled_from([0.5, 3.0, 12.0]),
    form=st.sampled_from(["all", "causal", "prefix"]),
)  # fmt: skip
def test_rows_of_every_visibility_are_as_alone(seed, n, d, sharpness, form):
    visible = None if form == "all" else causal(n)
    if form == "prefix":
        visible = visible.clone()
        visible[:, : n - 2] = True
        visible[:, n - 2 :] = False
    A, T = random_weights(seed, n, d, sharpness, visible)
    exact = certain_mass(A, T, visible=visible)
    alone = torch.cat([certain_mass(A[i : i + 1], T, visible=None if visible is None else visible[i : i + 1])
                       for i in range(n)])  # fmt: skip
    assert_close(exact, alone, atol=1e-7, rtol=0)


@settings(max_examples=15, deadline=None)
@given(seed=seeds, n=st.integers(2, 8), d=st.integers(1, 5), masked=st.booleans())
def test_functional_intervals_equal_the_extremes_over_all_vertices(seed, n, d, masked):
    visible = causal(n) if masked else None
    A, T = random_weights(seed, n, d, 2.0, visible)
    query = n - 1 - seed % 2
    seen = seen_of(visible, A)[query]
    coefficients = 100 * normals(seeded(seed), 4, n)
    coefficients[3] = torch.zeros(n)
    found = functional_interval(
        A[query], T, coefficients, visible=None if visible is None else seen
    )
    reached = vertices(A[query, seen], T[seen]) @ coefficients[:, seen].numpy().T
    assert found.lo.numpy() == pytest.approx(reached.min(0), abs=1e-6)
    assert found.hi.numpy() == pytest.approx(reached.max(0), abs=1e-6)
    assert found.value.numpy() == pytest.approx((coefficients @ A[query]).numpy(), abs=1e-12)


def test_rows_at_the_ends_of_the_scale():
    A, T = random_weights(0, 6, 20)
    assert certain_mass(A, T).tolist() == pytest.approx([1.0] * 6), (
        "no null space: the output fixes the row"
    )
    nothing = torch.zeros(6, 2).double()
    assert certain_mass(A, nothing).abs().max() == 0, (
        "values that say nothing leave the whole simplex"
    )
    one_hot = torch.eye(6).double()[:1]
    corner = doubles([[3.0], [1.0], [0.0], [1.0], [2.0], [0.5]])
    assert float(certain_mass(one_hot, corner)) == pytest.approx(1.0), (
        "only one row reaches the largest value"
    )
    assert certain_mass(A[:0], T).shape == (0,)


def test_a_value_outside_the_hull_of_the_others_need_not_be_fixed():
    """The examples of concepts.md."""
    T = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    assert certain_weights(torch.tensor([[0.2, 0.2, 0.2, 0.4]]), T)[0, 3] == pytest.approx(
        (4.2 - 2) / 7
    )
    T, row = torch.tensor([[0.0], [1.0], [1.0], [2.0]]), torch.full((4,), 0.25)
    both = functional_interval(row, T, torch.tensor([[0.0, 1.0, 1.0, 0.0]]))
    assert (float(both.lo), float(both.hi)) == pytest.approx((0, 1))


def test_rows_are_divided_by_their_sum_so_that_certain_mass_is_at_most_one():
    T = torch.eye(3)
    row = torch.tensor([[0.3, 0.3, 0.4009]])
    assert float(certain_mass(row, T)) == pytest.approx(1, abs=1e-15)
    assert float(certain_mass(row, T)) <= 1
    found = attention_intervals(row[0], T)
    assert torch.equal(found.weights, row[0].double() / row[0].double().sum())
    A, T = random_weights(0, 40, 60)
    assert float(certain_weights(A, T).sum(1).max()) > 1, "by rounding"
    assert float(certain_mass(A, T).max()) == 1


@pytest.mark.parametrize("huge", [1.0, 1e30, 1e80])
def test_no_end_is_beyond_what_signs_and_the_sum_prove(huge):
    """A change that is allowed to be huge leaves multipliers that prove nothing; the sum of the row still does."""
    generator = seeded()
    T = normals(generator, 24, 3) * 1e-6
    row = normals(generator, 24).softmax(0)
    programs = programs_of(row, T, huge)
    ends = programs.ends()
    assert (ends.lo >= 0).all()
    assert (ends.hi <= 1).all()
    assert ends.gap <= 1
    costs = normals(generator, 5, 24)
    assert (programs.optima(costs[None]).bounds >= costs.amin(1) - 1e-12).all()
    certificate = programs.certificate(0, costs[0])
    assert certificate.holds
    assert certificate.ends[0] >= costs[0].min() - 1e-12
