"""LN([T, 1]), λ_max and the three samplers: known spaces, known laws, invariants on random and real heads."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import causal, doubles, random_weights, seeded, seeds, softmax_of, uniforms
from identilens.measures.attention import samplers
from identilens.measures.attention.determined import certain_mass
from identilens.measures.attention.samplers import (
    far_alternatives,
    sample_alternatives,
    uniform_rows,
)
from identilens.measures.attention.simplex import simplex_space, total_variation

METHODS = ("brunner", "bhardwaj", "uniform")


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
    A, T = random_weights(seed, n, d)
    mask = causal(n) if masked else None
    A = softmax_of(sharpness * torch.log(A), mask)
    drawn = sample_alternatives(A, T, 3, method=method, visible=mask, generator=seeded(seed))
    assert drawn.shape == (3, n, n)
    assert drawn.min() >= 0
    assert (drawn.sum(-1) - 1).abs().max() < 1e-9
    assert (drawn @ T - A @ T).abs().max() < 1e-8
    if mask is not None:
        assert drawn.masked_fill(mask, 0.0).max() == 0


def test_the_step_to_the_edge_empties_a_weight():
    A, T = random_weights(3, 12, 4)
    for drawn in sample_alternatives(A, T, 4, method="bhardwaj", share=1.0, generator=seeded()):
        assert drawn.amin(-1).max() < 1e-15
    for drawn in sample_alternatives(A, T, 4, method="bhardwaj", generator=seeded()):
        assert drawn.min() > 0


def test_one_hot_rows():
    _, T = random_weights(1, 12, 2)
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
    [far] = far_alternatives(row[None], T, generator=seeded())
    assert far.tolist() == pytest.approx(
        [0.5, 0.5, 0.0], abs=1e-9
    )  # t = 0.3: distance 0.6 against 0.4 for t = −0.2
    A, T = random_weights(2, 20, 6)
    drawn = sample_alternatives(A, T, 30, method="uniform", generator=seeded())
    assert (
        total_variation(A, far_alternatives(A, T, generator=seeded()))
        >= total_variation(A, drawn).amax(0)
    ).all()


def test_the_farthest_corner_of_small_polytopes_is_found():
    """All corners are tried: a distribution over r + 1 keys that gives the same output, each the best for some row."""
    short = []
    for seed in range(12):
        A, T = random_weights(seed, 9, 2, sharpness=3.0)
        kept = torch.cat([T, torch.ones(9, 1)], 1)
        corners = torch.zeros(0, 9).double()
        for keys in itertools.combinations(range(9), 3):
            solved = torch.linalg.solve(kept[list(keys)].T, A[0] @ kept)
            if solved.min() >= -1e-12:
                corner = torch.zeros(1, 9).double()
                corner[0, list(keys)] = solved
                corners = torch.cat([corners, corner])
        farthest = float(total_variation(A[0], corners).max())
        found = float(total_variation(A[:1], far_alternatives(A[:1], T, generator=seeded(seed))))
        assert found <= farthest + 1e-9
        assert farthest <= float(1 - certain_mass(A[:1], T)) + 1e-9
        short.append(farthest - found)
    assert max(short) < 0.02
    assert sum(lost > 1e-6 for lost in short) <= 4


def simplex(size):
    """The whole simplex, where draws are Dirichlet(1, …, 1): its law and (Σ x² − 1/n) of draws."""
    n = size + 1
    row = torch.softmax(torch.linspace(0, 2, n, dtype=torch.float64), 0)
    return row, torch.ones(n, 1), 2 / (n + 1) - 1 / n, lambda x: x.square().sum(1) - 1 / n


def cut_simplex(size):
    """The simplex with no coordinate above 2.5 / n, each with its slack; the law by rejection."""
    n = size + 1
    pairs = torch.eye(n).double().repeat(2, 1)
    T = torch.cat([pairs, torch.arange(2 * n)[:, None] < n], 1)
    row = torch.cat([torch.full((n,), 1 / n), torch.full((n,), 1.5 / n)]).double()
    drawn = -uniforms(seeded(1), 2_000_000 // n, n).log()
    drawn = drawn / drawn.sum(1, keepdim=True)
    kept = drawn[(drawn < 2.5 / n).all(1)]
    assert len(kept) > 10_000
    expected = float(kept.square().sum(1).mean()) - 1 / n
    return row / row.sum(), T, expected, lambda x: (2.5 * x[:, :n]).square().sum(1) - 1 / n


def box(size):
    """A product of segments of very different lengths: each last weight of three is uniform on its segment."""
    masses = torch.linspace(1, 20, size, dtype=torch.float64)
    masses = masses / masses.sum()
    blocks = torch.eye(size).double().repeat_interleave(3, 0)
    places = doubles([0.0, 1.0, 0.5]).repeat(size)[:, None]
    row = (masses[:, None] * doubles([0.1, 0.1, 0.8])).flatten()
    return (
        row,
        torch.cat([blocks, blocks * places], 1),
        1 / 12,
        lambda x: (x[:, 2::3] / masses - 0.5).square().mean(1),
    )


LAWS = {
    simplex: [(2, 20_000), (10, 10_000), (30, 4000), (60, 1500)],
    cut_simplex: [(2, 20_000), (10, 10_000)],
    box: [(2, 20_000), (20, 5000), (60, 1500)],
}


@pytest.mark.parametrize(
    ("made", "size", "count"), [(made, *one) for made, sizes in LAWS.items() for one in sizes]
)
def test_draws_have_the_spread_of_the_uniform_law(made, size, count):
    row, T, expected, statistic = made(size)
    space = simplex_space(T)
    assert space.nullity == size
    drawn = uniform_rows(row[None], [space], count, seeded())[:, 0]
    assert drawn.min() >= 0
    kept = torch.cat([T, torch.ones(len(T), 1)], 1).double()
    assert (drawn @ kept - row @ kept).abs().max() < 1e-10
    found = statistic(drawn)
    error = float(found.std()) / count**0.5
    assert error < 0.02 * expected, "else the test would see nothing"
    assert abs(float(found.mean()) - expected) < 3 * error


def test_too_short_chains_are_seen(monkeypatch):
    row, T, expected, statistic = simplex(60)
    monkeypatch.setattr(samplers, "LEGS", 1)
    drawn = uniform_rows(row[None], [simplex_space(T)], 1000, seeded())
    assert float(statistic(drawn[:, 0]).mean()) < 0.9 * expected


def test_a_row_that_cannot_move_stays():
    row = torch.full((1, 3), 1 / 3).double()
    assert_close(uniform_rows(row, [simplex_space(torch.eye(3))], 2), row.expand(2, 1, 3))


def test_rows_too_large_to_run_together_run_one_by_one(monkeypatch):
    monkeypatch.setattr(samplers, "BYTES", 1)
    A, T = random_weights(0, 6, 2)
    drawn = sample_alternatives(A, T, 3, method="uniform", generator=seeded())
    assert drawn.min() >= 0
    assert_close(drawn @ T.double(), (A @ T).double().expand(3, -1, -1))
    assert (drawn - A).abs().amax((0, 2)).min() > 1e-3, "every row moves"


def test_rows_of_different_masks_have_the_means_of_their_own():
    """Two rows of the whole simplex over 3 and 5 keys, drawn together."""
    visible = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    A = visible / visible.sum(1, keepdim=True).double()
    drawn = sample_alternatives(
        A, torch.ones(5, 1), 500, method="uniform", visible=visible, generator=seeded()
    )
    assert (drawn.mean(0) - A).abs().max() < 0.04
    expected = torch.tensor([(1 / 3) * (2 / 3) / 4, (1 / 5) * (4 / 5) / 6, (1 / 3) * (2 / 3) / 4])
    assert (drawn.var(0)[:, :3] / expected[:, None] - 1).abs().max() < 0.25
