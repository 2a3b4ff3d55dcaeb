"""Uniform alternatives on polytopes whose uniform law is known, and how long chains have to be."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import doubles, random_weights, seeded, uniforms
from identilens.measures.attention import (
    billiard,
    chain_mixing,
    sample_alternatives,
    simplex_space,
    uniform_alternatives,
)


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
    drawn = uniform_alternatives(row, space, count, generator=seeded())
    assert drawn.min() >= 0
    kept = torch.cat([T, torch.ones(len(T), 1)], 1).double()
    assert (drawn @ kept - row @ kept).abs().max() < 1e-10
    found = statistic(drawn)
    error = float(found.std()) / count**0.5
    assert error < 0.02 * expected, "else the test would see nothing"
    assert abs(float(found.mean()) - expected) < 3 * error


@pytest.mark.parametrize("size", [2, 12, 60])
def test_single_weights_have_the_law_of_a_dirichlet_draw(size):
    row, T, *_ = simplex(size)
    drawn = uniform_alternatives(row, simplex_space(T), 3000, generator=seeded(3))
    # A weight x is Beta(1, n − 1): 1 − (1 − x)^(n − 1) is uniform on [0, 1]. Kolmogorov's distance at 1 in 10,000.
    for key in (0, size):
        levels = (1 - (1 - drawn[:, key]) ** size).sort().values
        distance = (levels - torch.linspace(0, 1, len(levels), dtype=torch.float64)).abs().max()
        assert float(distance) < 2.2 / len(levels) ** 0.5


def test_too_short_chains_are_seen():
    row, T, expected, statistic = simplex(60)
    space = simplex_space(T)
    short = statistic(uniform_alternatives(row, space, 1000, legs=1, generator=seeded()))
    assert float(short.mean()) < 0.9 * expected
    found = chain_mixing(row[None], [space], seeded())
    assert found.legs >= 16
    assert found.settled
    assert found.memory_error < 0.05


@pytest.mark.parametrize(
    ("memory", "growth", "settled"),
    [(0.2, 0.2, True), (-0.5, -0.5, True), (0.21, 0.0, False), (0.0, 0.21, False)],
)
def test_chains_have_settled_when_neither_memory_nor_growth_is_seen(memory, growth, settled):
    assert billiard.Mixing(16, memory, 0.1, growth, 0.1).settled == settled


def test_the_length_is_found_again_with_the_seed():
    A, T = random_weights(0, 30, 8)
    spaces = [simplex_space(T)] * 30
    found = chain_mixing(A, spaces, seeded())
    assert found.settled
    assert found == chain_mixing(A, spaces, seeded())
    pinned = chain_mixing(torch.full((1, 3), 1 / 3), [simplex_space(torch.eye(3))])
    assert (pinned.legs, pinned.settled) == (0, True)


def test_rows_too_large_to_run_together_run_one_by_one(monkeypatch):
    monkeypatch.setattr(billiard, "BYTES", 1)
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
