"""Programs that run together: against HiGHS one by one, by hand, and where the interior-point method must give up."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad
from torch.testing import assert_close

from helpers.heads import normals, seeded, seeds, uniforms
from helpers.programs import LINE, by_clarabel, kept_basis, random_row
from identilens.errors import NumericalError
from identilens.linalg import head_values, interior
from identilens.linalg.interior import SharedPrograms
from identilens.linalg.programs import ACCEPTED_ERROR, by_simplex
from identilens.linalg.simplex import joint_space


@settings(max_examples=15, deadline=None)
@given(
    seed=seeds,
    n=st.integers(2, 40),
    d=st.integers(1, 12),
    sharpness=st.sampled_from([0.5, 4.0, 15.0]),
)
@example(seed=0, n=9, d=8, sharpness=4.0)  # one point is all there is
@example(seed=1, n=40, d=3, sharpness=15.0)  # rows that are nearly one-hot
@example(seed=2, n=20, d=12, sharpness=15.0)  # fewer moves than equations
def test_equal_to_a_simplex_method_one_by_one(seed, n, d, sharpness):
    row, T = random_row(seed, n, min(d, n - 1), sharpness)
    kept = kept_basis(T)
    generator = seeded(seed + 1)
    drawn = normals(generator, 3, n)
    costs = torch.cat([torch.eye(n).double(), -torch.eye(n).double(), drawn])
    rows = row.expand(len(costs), n)
    optima = SharedPrograms(kept).minimise(costs, rows)
    reference = torch.stack([cost @ by_simplex(cost, row, kept)[0] for cost in costs])
    torch.testing.assert_close(optima.values, reference, atol=2 * ACCEPTED_ERROR, rtol=1e-8)
    assert (optima.bounds <= optima.values).all()
    assert (
        (optima.values - optima.bounds) <= ACCEPTED_ERROR * costs.abs().amax(1).clamp_min(1.0)
    ).all()
    assert (optima.points >= 0).all()
    assert ((optima.points - rows) @ kept).abs().max() <= ACCEPTED_ERROR
    # The multipliers prove the bounds by themselves.
    reduced = costs - optima.multipliers @ kept.T
    proven = (optima.multipliers * (rows @ kept)).sum(1) + reduced.amin(1)
    assert (optima.bounds <= proven + 1e-12).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_proposal_costs_no_more_than_alternatives_and_stays_in_the_ellipsoid(seed):
    row, T = random_row(seed, 20, 6, 2.0)
    kept = kept_basis(T)
    programs, cost = SharedPrograms(kept), torch.eye(20).double()[int(row.argmax())]
    reach = torch.full((kept.shape[1],), 0.05, dtype=torch.float64)
    proposed = programs.proposal(cost, row @ kept, reach)
    least = programs.minimise(cost[None], row[None], reach[None]).values[0]
    assert proposed.min() >= 0
    assert cost @ proposed <= least + 1e-6
    assert 0.9 < float((((proposed - row) @ kept) / reach).norm()) < 1.001


def test_heads_of_different_rank_and_rows_of_their_own_equal_each_alone():
    made = [random_row(seed, 20, d, 2.0) for seed, d in enumerate((6, 2, 11))]
    kept = torch.stack([pad(one := kept_basis(T), (0, 12 - one.shape[1])) for _, T in made])
    rows = torch.stack([torch.stack([row.roll(by) for by in range(20)]) for row, _ in made])
    reach = 0.05 * (kept != 0).any(1, keepdim=True).double().repeat(1, 20, 1)
    reach[..., 0] = 0.0
    costs = torch.eye(20).double()
    for some in (0 * reach, reach):
        together = SharedPrograms(kept).minimise(costs.expand(3, -1, -1), rows, some)
        for head, (_, T) in enumerate(made):
            own = some[head, ::7, : kept_basis(T).shape[1]]
            alone = SharedPrograms(kept_basis(T)).minimise(costs[::7], rows[head, ::7], own)
            assert_close(together.values[head, ::7], alone.values, atol=2e-8, rtol=0)
            assert_close(together.bounds[head, ::7], alone.bounds, atol=2e-8, rtol=0)


def test_what_cannot_be_proven_is_solved_one_by_one(monkeypatch):
    row, T = random_row(0, 12, 4, 2.0)
    kept = kept_basis(T)
    expected = SharedPrograms(kept).minimise(torch.eye(12).double(), row.expand(12, 12)).values
    monkeypatch.setattr(interior, "_STEPS", 1)
    asked = []

    def counted(cost, row, kept):
        asked.append(cost)
        return by_simplex(cost, row, kept)

    monkeypatch.setattr(interior, "by_simplex", counted)
    found = (
        SharedPrograms(kept).minimise(torch.eye(12, dtype=torch.float64), row.expand(12, 12)).values
    )
    assert asked
    assert_close(found, expected, atol=2 * ACCEPTED_ERROR, rtol=0)


@pytest.mark.parametrize("apart", [0.0, 1e-9, 1e-5])
@pytest.mark.parametrize("seed", range(6))
def test_keys_of_equal_values_and_weights_of_zero(seed, apart):
    """Bases of equal keys are singular, and points near P need not be in it: neither may prove anything."""
    row, T = random_row(seed, 14, 4, (0.5, 4.0, 15.0)[seed % 3])
    generator = seeded(seed)
    T[1::3] = T[0] + apart * normals(generator, T[1::3].shape)
    if seed % 2:
        row = torch.where(row < row.median(), 0.0, row)
        row = row / row.sum()
    kept = head_values(T).simplex_space().kept
    costs, rows = torch.cat([torch.eye(14), 1 - torch.eye(14)]).double(), row.expand(28, 14)
    shared = SharedPrograms(kept)
    optima = shared.minimise(costs, rows)
    assert (optima.values - optima.bounds).max() <= ACCEPTED_ERROR
    assert (optima.points >= 0).all()
    assert ((optima.points - rows) @ kept).abs().max() <= ACCEPTED_ERROR
    # A point of one program is feasible in all others: no bound is above its cost.
    least = (costs @ optima.points.T).amin(1)
    assert (optima.bounds <= least + 2 * ACCEPTED_ERROR).all()


def test_infeasible_numbers_are_reported():
    with pytest.raises(NumericalError, match="infeasible"):
        by_simplex(
            torch.ones(3).double(), torch.tensor([-1.0, 0.0, 0.0]).double(), kept_basis(LINE)
        )


KINDS = ("plain", "equal values", "one-hot", "near-zero weights", "norms spread", "columns spread")


def case(kind, seed):
    """A row and T of a random size, of a kind that is hard on a solver."""
    generator = seeded(seed)
    n, d = (int(torch.randint(3, most, (1,), generator=generator)) for most in (40, 20))
    row, T = random_row(seed, n, d, 4.0)
    if kind == "equal values":
        T[1::2] = T[0]
    elif kind == "one-hot":
        row = torch.eye(n).double()[n // 2]
    elif kind == "near-zero weights":
        row[::2] *= 1e-12
    elif kind == "norms spread":
        T *= 10 ** (6 * uniforms(generator, n, 1) - 3)
    elif kind == "columns spread":
        T *= 10 ** (4 * uniforms(generator, 1, d) - 2)
    return row / row.sum(), T


def programs(row, T, tolerance):
    """Every key's weight and its negative over the alternatives of a row: programs, costs, rows, reach."""
    space = head_values(T).simplex_space()
    costs = torch.cat([torch.eye(len(row)).double(), -torch.eye(len(row)).double()])
    reach = tolerance * torch.linalg.norm(row @ T) / space.scales
    shared = SharedPrograms(space.kept)
    return shared, costs, row.expand(len(costs), -1), reach.expand(len(costs), -1)


@pytest.mark.parametrize("tolerance", [2**-24, 2**-8, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_certified_and_equal_to_clarabel(kind, tolerance):
    compared = 0
    for seed in range(3):
        row, T = case(kind, seed)
        shared, costs, rows, reach = programs(row, T, tolerance)
        optima = shared.minimise(costs, rows, reach)
        # Points are alternatives, and bounds are what their multipliers prove.
        assert (optima.points >= 0).all()
        assert_close(optima.points.sum(1), rows.sum(1), atol=1e-12, rtol=0)
        moved = torch.linalg.norm((optima.points - rows) @ T, dim=1)
        rounding = 3e-7 * len(row) * torch.linalg.matrix_norm(T, 2)
        assert (moved <= tolerance * torch.linalg.norm(row @ T) * (1 + 1e-6) + rounding).all()
        assert_close(optima.values, (costs * optima.points).sum(1))
        proven = shared.proven(costs, rows, optima.multipliers, reach)
        assert (optima.bounds <= proven + 1e-12).all()
        assert (optima.values - optima.bounds).max() <= 5e-6
        # Where T's weak directions count as none, the program on T itself is another one.
        if kind == "columns spread" or (kind == "norms spread" and tolerance < 1e-3):
            continue
        for at in range(0, len(costs), 5):
            expected = by_clarabel(costs[at], row, T, tolerance * float(torch.linalg.norm(row @ T)))
            if expected is not None:
                compared += 1
                assert float(optima.bounds[at]) == pytest.approx(expected, abs=1e-6)
    assert compared > 10 or "spread" in kind


def test_rows_beside_each_other_keep_their_own_sums():
    """Two rows whose outputs add up: what one gives up the other must bring, within the tolerance."""
    (one, T), (other, U) = random_row(0, 9, 4, 2.0), random_row(1, 7, 4, 2.0)
    row, values = torch.cat([one, other]), torch.cat([T, U])
    blocks = torch.tensor([0] * 9 + [1] * 7)
    ones = torch.nn.functional.one_hot(blocks).double()
    ones = ones / torch.linalg.norm(ones, dim=0)
    left, sigma, _ = torch.linalg.svd(values - ones @ (ones.T @ values), full_matrices=False)
    allowed = 0.05 * float(torch.linalg.norm(row @ values))
    shared = SharedPrograms(torch.cat([ones, left], 1), blocks)
    costs = torch.eye(16).double()
    reach = torch.cat([torch.zeros(2).double(), allowed / sigma]).expand(16, -1)
    optima = shared.minimise(costs, row.expand(16, -1), reach)
    sums = optima.points @ torch.nn.functional.one_hot(blocks).double()
    assert_close(sums, torch.ones_like(sums), atol=1e-12, rtol=0)
    assert (optima.values - optima.bounds).max() <= 1e-7
    for key in range(len(row)):
        expected = by_clarabel(costs[key], row, values, allowed, blocks)
        assert float(optima.bounds[key]) == pytest.approx(expected, abs=1e-6)


def beside(heads, keys, d, width, seed=0):
    """Rows of several heads beside each other, whose outputs add up in so many dimensions: programs, rows, reach."""
    generator = seeded(seed)
    values = normals(generator, heads, keys, d)
    values = values @ normals(generator, heads, d, width)
    space = joint_space(values, torch.ones(keys, dtype=torch.bool), 1e-7)
    row = uniforms(generator, heads, keys)
    row = (row / row.sum(1, keepdim=True)).flatten()
    allowed = 0.02 * float(torch.linalg.norm(row @ values.flatten(0, 1)))
    shared = SharedPrograms(space.kept, space.blocks)
    return shared, row, values.flatten(0, 1), allowed, allowed / space.scales


@pytest.mark.parametrize(
    "width", [15, 8], ids=["each head keeps its own output", "heads can trade"]
)
def test_heads_beside_each_other(width):
    """The sum of three heads' outputs: the equations of a step are a block a head, or are not."""
    shared, row, values, allowed, reach = beside(3, 12, 5, width)
    costs = torch.eye(len(row)).double()[::5]
    rows, reach = row.expand(len(costs), -1), reach.expand(len(costs), -1)
    exact = shared.minimise(costs, rows, reach)
    for at, cost in enumerate(costs):
        expected = by_clarabel(cost, row, values, allowed, shared._blocks)
        assert float(exact.bounds[at]) == pytest.approx(expected, abs=1e-6)
