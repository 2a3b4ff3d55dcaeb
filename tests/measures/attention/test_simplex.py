"""LN([T, 1]), λ_max and the three samplers: known spaces, known laws, invariants on random and real heads."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.heads import causal, doubles, normals, seeded, seeds
from identilens.measures.attention.billiard import analytic_centre, uniform_alternatives
from identilens.measures.attention.determined import certain_mass
from identilens.measures.attention.samplers import (
    far_alternative,
    far_alternatives,
    iterate_alternatives,
    sample_alternatives,
)
from identilens.measures.attention.simplex import largest_step, simplex_space, total_variation

METHODS = ("brunner", "bhardwaj", "uniform")


def random_head(seed, n, d, sharpness=1.0):
    generator = seeded(seed)
    T = normals(generator, n, d)
    return torch.softmax(sharpness * normals(generator, n, n), -1), T


def test_largest_step_by_hand():
    row = doubles([0.5, 0.3, 0.2, 0.0])
    directions = doubles([[1, -1, 0, 0], [1, 1, -2, 0], [1, 0, 0, -1], [0, 0, 0, 0]])
    assert largest_step(row.expand(4, 4), directions).tolist() == pytest.approx(
        [0.3, 0.1, 0.0, 0.0]
    )
    assert largest_step(row, torch.tensor([1.0, 0, 0, 0]).double()).item() == float("inf")


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=8, deadline=None)
@given(
    seed=seeds,
    n=st.integers(2, 16),
    d=st.integers(1, 6),
    sharpness=st.sampled_from([1.0, 6.0, 40.0]),
    masked=st.booleans(),
)
def test_every_alternative_is_a_distribution_with_the_same_output(
    method, seed, n, d, sharpness, masked
):
    A, T = random_head(seed, n, d)
    logits = sharpness * torch.log(A)
    mask = causal(n) if masked else None
    A = torch.softmax(logits if mask is None else logits.masked_fill(~mask, -torch.inf), -1)
    drawn = sample_alternatives(A, T, 3, method=method, visible=mask, generator=seeded(seed))
    assert drawn.shape == (3, n, n)
    assert drawn.min() >= 0
    assert (drawn.sum(-1) - 1).abs().max() < 1e-9
    assert (drawn @ T - A @ T).abs().max() < 1e-8
    if mask is not None:
        assert drawn.masked_fill(mask, 0.0).max() == 0


def test_the_step_to_the_edge_empties_a_weight():
    A, T = random_head(3, 12, 4)
    for drawn in iterate_alternatives(A, T, 4, method="bhardwaj", share=1.0, generator=seeded()):
        assert drawn.amin(-1).max() < 1e-15
    for drawn in iterate_alternatives(A, T, 4, method="bhardwaj", generator=seeded()):
        assert drawn.min() > 0


@pytest.mark.parametrize("start", [0.2, 1e-7])
def test_draws_are_uniform_on_a_segment(start):
    # Keys at 0, 1, 1/2: (start + t, start + t, 1 − 2 start − 2t), so the last weight is uniform on [0, 1].
    row = doubles([start, start, 1 - 2 * start])
    T = doubles([[0.0], [1.0], [0.5]])
    drawn = uniform_alternatives(row, simplex_space(T), 4000, generator=seeded())[:, 2]
    quantiles = torch.quantile(drawn, torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9]).double())
    assert quantiles.tolist() == pytest.approx([0.1, 0.25, 0.5, 0.75, 0.9], abs=0.03)


def test_analytic_centre_by_hand():
    row = doubles([0.05, 0.15, 0.8])
    centre = analytic_centre(row, simplex_space(torch.ones(3, 1)))
    assert centre.point.tolist() == pytest.approx([1 / 3] * 3, abs=1e-7)


def test_one_hot_rows():
    _, T = random_head(1, 12, 2)
    T[0] = T[1:].mean(0)  # inside the others' hull: its one-hot row has many alternatives
    T[1] = 100.0  # a corner: its one-hot row has none
    A = torch.eye(12).double()
    generator = seeded()
    far = far_alternatives(A, T, generator=generator)
    assert not torch.equal(generator.get_state(), seeded().get_state()), "starts are drawn from it"
    walked = sample_alternatives(A, T, 3, method="uniform", generator=seeded())
    scaled = sample_alternatives(A, T, 3, method="brunner", generator=seeded())
    for alternatives in (far[None], walked, scaled):
        assert (alternatives @ T - T).abs().max() < 1e-9
        assert alternatives.min() >= 0
        assert total_variation(A, alternatives)[:, 1].max() < 1e-9
    assert total_variation(A, far)[0] == pytest.approx(1.0)
    assert total_variation(A, walked)[:, 0].min() > 0.5
    nearly = 0.999999 * A + 1e-6 / 12
    assert (
        total_variation(nearly, sample_alternatives(nearly, T, 3, method="uniform"))[:, 0].min()
        > 0.5
    )


def test_far_alternative_by_hand_and_beyond_the_samples():
    row = doubles([0.2, 0.2, 0.6])
    T = doubles([[0.0], [1.0], [0.5]])
    far = far_alternative(row, simplex_space(T), generator=seeded())
    assert far.tolist() == pytest.approx(
        [0.5, 0.5, 0.0], abs=1e-9
    )  # t = 0.3: distance 0.6 against 0.4 for t = −0.2
    A, T = random_head(2, 20, 6)
    drawn = sample_alternatives(A, T, 30, method="uniform", generator=seeded())
    assert (
        total_variation(A, far_alternatives(A, T, generator=seeded()))
        >= total_variation(A, drawn).amax(0)
    ).all()


def test_the_farthest_corner_of_small_polytopes_is_found():
    """All corners are tried: a distribution over r + 1 keys that gives the same output, each the best for some row."""
    short = []
    for seed in range(12):
        A, T = random_head(seed, 9, 2, sharpness=3.0)
        kept = torch.cat([T, torch.ones(9, 1)], 1)
        corners = torch.zeros(0, 9).double()
        for keys in itertools.combinations(range(9), 3):
            solved = torch.linalg.solve(kept[list(keys)].T, A[0] @ kept)
            if solved.min() >= -1e-12:
                corner = torch.zeros(1, 9).double()
                corner[0, list(keys)] = solved
                corners = torch.cat([corners, corner])
        farthest = float(total_variation(A[0], corners).max())
        found = float(
            total_variation(A[0], far_alternative(A[0], simplex_space(T), generator=seeded(seed)))
        )
        assert found <= farthest + 1e-9
        assert farthest <= float(1 - certain_mass(A[:1], T)) + 1e-9
        short.append(farthest - found)
    assert max(short) < 0.02
    assert sum(lost > 1e-6 for lost in short) <= 4
