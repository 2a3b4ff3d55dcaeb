"""Projected values built from a known T = U[:, :r] S Vᵀ: what is read off the factors is what T was made of."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import causal, masks, normals, seeded, softmax_of, uniforms
from helpers.layers import measured
from helpers.reference import effective_svd, rank_svd
from identilens.linalg import FLOAT32_EPS, ProjectedValues
from identilens.measures.attention import effective_attention, numerical_rank


def orthonormal(rows, columns, generator):
    return torch.linalg.qr(normals(generator, rows, columns)).Q


def made(n=30, d_v=8, d_model=20, rank=5, seed=0):
    """V, W_O and T = V W_O with singular values rank, …, 2, 1."""
    generator = seeded(seed)
    left, right = orthonormal(n, rank, generator), orthonormal(d_model, rank, generator)
    inner, sigma = orthonormal(d_v, rank, generator), torch.arange(rank, 0, -1, dtype=torch.float64)
    return left * sigma @ inner.mT, inner @ right.mT, left * sigma @ right.mT


@pytest.mark.parametrize(("n", "rank"), [(30, 5), (30, 8), (50, 5), (50, 8), (6, 6), (3, 3)])
def test_rank_singular_values_and_nullities_are_those_of_t(n, rank):
    values, projection, T = made(n, rank=rank)
    found = ProjectedValues.of(values, projection)
    assert found.compact.shape == (n, 8)
    assert found.d_model == 20
    assert int(found.rank) == int(found.factor.rank) == rank
    expected = torch.arange(rank, 0, -1, dtype=torch.float64)
    torch.testing.assert_close(found.singular_values[:rank], expected)
    torch.testing.assert_close(found.compact @ found.compact.mT, T @ T.mT)
    basis = found.factor.basis
    torch.testing.assert_close(basis @ (basis.mT @ found.compact), found.compact)
    ones = torch.cat([T, torch.ones(n, 1)], 1)
    assert int(found.simplex_nullity) == n - rank_svd(ones)
    assert found.simplex_space().nullity == n - rank_svd(ones)
    assert int(numerical_rank(found).nullity) == int(numerical_rank(T).nullity) == n - rank


@pytest.mark.parametrize("share", [0.0, 1e-6, 3e-6, 5e-6, 1e-5, 1e-4, 0.5])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_one_rule_for_the_rank_with_ones(share, offset):
    """A T whose columns span the ones but for a share of their length: every way of counting gives one number."""
    n, d_v = 33, 32
    outside, within = orthonormal(n, 2, seeded(3)).T
    outside = outside - outside.mean()
    outside, ones = outside / outside.norm(), torch.full((n,), n**-0.5, dtype=torch.float64)
    normal = share * ones + (1 - share**2) ** 0.5 * outside
    T = orthonormal(n, d_v, seeded(4)) + offset * torch.outer(within, within[:d_v])
    T = T - torch.outer(normal, normal @ T)
    found = ProjectedValues.of(T)
    expected = (
        n
        - 1
        - int(
            (torch.linalg.svdvals(T - T.mean(0)) > found.tolerance * torch.linalg.norm(T, 2)).sum()
        )
    )
    assert expected == 1 or share > found.tolerance
    assert int(found.rank) == d_v
    assert int(found.simplex_nullity) == found.simplex_space().nullity == expected
    assert int(numerical_rank(T).simplex_nullity) == expected
    assert int(measured(found, torch.full((1, 1, n), 1 / n).double()).simplex_nullity) == expected
    kept = found.simplex_space().kept
    assert (kept @ (kept.mT @ ones) - ones).abs().max() < 1e-14, "sums are kept exactly"


def test_one_tolerance_for_any_number_of_keys():
    values, projection, _ = made()
    found = ProjectedValues.of(values, projection)
    assert found.tolerance == 30 * FLOAT32_EPS
    assert found.tolerance_of(7) == 20 * FLOAT32_EPS


@pytest.mark.parametrize(("n", "rank"), [(30, 5), (40, 5), (80, 8), (6, 6)])
@pytest.mark.parametrize("name", [*masks(1), "all"])
def test_every_visibility_equals_an_svd_of_each_row(name, n, rank):
    values, projection, T = made(n, rank=rank)
    everything = torch.ones(n, n, dtype=torch.bool)
    visible = (masks(n) | {"all": everything})[name]
    mask = everything if visible is None else visible
    weights = softmax_of(normals(seeded(1), n, n), mask)
    found = ProjectedValues.of(values, projection)
    expected = effective_svd(weights, T, mask)
    assert_close(found.effective(weights, visible), expected, atol=1e-8, rtol=0)
    public = effective_attention(found, weights=weights, visible=visible)
    assert torch.equal(public.effective, found.effective(weights, visible))
    projector = found.projector(n, visible)
    assert projector.row_ranks()[0].tolist() == [rank_svd(T[seen]) for seen in mask]
    assert int(projector.rank[0]) == rank_svd(T[mask[-1]])
    assert projector.sizes.tolist() == mask.sum(-1).tolist()


def test_heads_side_by_side_equal_each_alone():
    heads = [made(seed=seed) for seed in range(3)]
    values, projection, _ = (
        torch.stack(parts).reshape(1, 3, *parts[0].shape) for parts in zip(*heads, strict=True)
    )
    weights = uniforms(seeded(0), 1, 3, 30, 30)
    found = ProjectedValues.of(values, projection)
    assert found.rank.tolist() == [[5, 5, 5]]
    for head, (one, block, _) in enumerate(heads):
        alone = ProjectedValues.of(one, block).effective(weights[0, head], causal(30))
        assert_close(found.effective(weights, causal(30))[0, head], alone, atol=1e-10, rtol=0)


def test_rows_that_see_the_same_keys_share_a_space():
    values, projection, T = made()
    mask = causal(30)
    mask[4] = mask[3]
    spaces = ProjectedValues.of(values, projection).simplex_spaces(30, mask)
    assert spaces[4] is spaces[3]
    assert spaces[5] is not spaces[3]
    assert (spaces[20].free.mT @ T).abs().max() < 1e-12
    assert not spaces[20].free[21:].any()


@pytest.mark.parametrize("heads", [(), (2,), (3, 2)])
def test_rows_that_are_added_and_left_out(heads):
    values, projection, T = made(n=6, rank=4)
    values, T = values.expand(*heads, -1, -1), T.expand(*heads, -1, -1)
    given = ProjectedValues.of(values, projection)
    sunk = given.with_sink()
    assert sunk.values.shape == (*heads, 7, 8)
    assert torch.equal(sunk.values[..., :6, :], given.values)
    assert not sunk.values[..., 6, :].any()
    seen = torch.tensor([1, 0, 1, 1, 0, 1]).bool()
    assert_close(
        given.restricted(seen).compact @ given.restricted(seen).compact.mT,
        T[..., seen, :] @ T[..., seen, :].mT,
    )
