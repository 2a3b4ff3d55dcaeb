"""Cone programs: against Clarabel posed on T itself, and by their own certificates."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import normals, seeded, uniforms
from helpers.programs import by_clarabel, random_row
from identilens.linalg import head_values
from identilens.linalg.cone import Scaling, determinant, product, quotient, room
from identilens.linalg.interior import SharedPrograms
from identilens.linalg.simplex import joint_space

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
        assert optima.gap <= 5e-6
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
    assert optima.gap <= 1e-7
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


@pytest.mark.parametrize("width", [15, 8])
def test_products_by_parts_equal_those_with_the_whole(width):
    columns = beside(3, 12, 5, width)[0]._columns
    generator = seeded()
    points = uniforms(generator, 4, 36)
    kept = columns.kept
    expected = torch.stack([kept.T @ torch.diag(one) @ kept for one in points])
    factor = torch.linalg.cholesky_ex(columns.gram(points))[0]  # reads one triangle
    right = normals(generator, 4, kept.shape[1])
    assert_close(columns.solve(factor, right), torch.linalg.solve(expected, right))


def test_algebra_of_the_cone():
    generator = seeded()
    tails = normals(generator, 2, 5, 6)
    heads = torch.linalg.norm(tails, dim=-1, keepdim=True) + torch.rand(
        2, 5, 1, generator=generator
    )
    v, z = torch.cat([heads, tails], -1)
    assert (determinant(v) > 0).all()
    assert_close(product(v, quotient(v, z)), z)
    scaling = Scaling.between(v, z)
    assert_close(scaling.apply(z), scaling.apply(v, -1.0))
    assert_close(scaling.apply(scaling.apply(z), -1.0), z)
    move = normals(generator, 5, 7)
    far = room(v, move)
    bounded = far[:, 0].isfinite()
    assert bounded.any()
    edge = determinant((v + far * move)[bounded])
    assert_close(edge, torch.zeros_like(edge), atol=1e-9, rtol=0)
    assert (determinant((v + 0.999 * far * move)[bounded]) > 0).all()
