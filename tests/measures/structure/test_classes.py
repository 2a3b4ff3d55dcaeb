import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import doubles, normals, random_weights, seeded, seeds
from identilens.measures.attention.simplex import largest_step
from identilens.measures.structure import (
    circularity,
    efficient_attention,
    equivalent,
    perturbation_directions,
    perturbed,
    structure_norm,
    structure_weights,
)


def moved(weights, T, seed, share=0.5, ones=True):
    """Other weights with the same output; with ``ones`` on the simplex too."""
    columns = torch.cat([T, torch.ones(len(T), 1, dtype=T.dtype)], 1) if ones else T
    basis = torch.linalg.qr(columns).Q
    noise = normals(seeded(seed), weights.shape)
    noise = noise - noise @ basis @ basis.mT
    return weights + share * largest_step(weights, noise)[:, None] * noise


@pytest.mark.parametrize("relation", ["output", "row_sums", "simplex"])
@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_they_are_equivalence_relations(relation, seed):
    one, T = random_weights(seed, 12, 4)
    two = moved(one, T, seed + 1)
    three = moved(two, T, seed + 2)
    for first in (one, two, three):
        for second in (one, two, three):
            assert equivalent(first, second, T, relation=relation)
            assert_close(
                efficient_attention(first, T).efficient, efficient_attention(second, T).efficient
            )
    other = random_weights(seed + 3, 12, 4)[0]
    assert not equivalent(one, other, T, relation=relation)
    assert not equivalent(other, three, T, relation=relation)


def test_each_relation_is_finer_than_the_one_before():
    one, T = random_weights(0, 12, 4)
    loose = moved(one, T, 1, ones=False)
    assert equivalent(one, loose, T)
    assert not equivalent(one, loose, T, relation="row_sums")
    far = moved(one, T, 2, share=3.0)
    assert equivalent(one, far, T, relation="row_sums")
    assert bool((far < 0).any())
    assert not equivalent(one, far, T, relation="simplex")


def test_the_finer_relations_live_on_distributions():
    """Weights whose rows do not sum to 1 are not even equivalent to themselves."""
    one, T = random_weights(0, 8, 3)
    assert equivalent(2 * one, 2 * one, T)
    assert not equivalent(2 * one, 2 * one, T, relation="row_sums")
    assert not equivalent(-one, -one, T, relation="simplex")


def heads_of(seed, n=16, d=5, heads=3):
    pairs = [random_weights(seed + head, n, d) for head in range(heads)]
    return torch.stack([weights for weights, _ in pairs]), torch.stack([T for _, T in pairs])


def test_random_texts_share_what_chance_gives():
    weights, first = heads_of(0)
    second = heads_of(100)[1]
    found = circularity(weights, first, second, seed=1)
    assert found.freedom.tolist() == [10, 10, 10]
    assert bool((found.change_first < 1e-12).all())
    assert bool(found.disagree(1e-6).all())
    assert_close(found.overlap, found.chance, atol=0.2, rtol=0)
    many = torch.stack(
        [circularity(weights, first, heads_of(seed)[1]).overlap for seed in range(200, 240)]
    )
    assert float(many.mean()) == pytest.approx(float(found.chance[0]), abs=0.02)


def test_equal_values_agree_on_everything():
    weights, first = heads_of(7)
    found = circularity(weights, first, 3 * first)
    assert_close(found.overlap, torch.ones(3).double())
    assert not bool(found.disagree(1e-6).any())
    assert bool((found.moved > 0.01).all())
    again = circularity(weights, first, 3 * first)
    assert_close(again.moved, found.moved)


def test_nothing_moves_where_nothing_is_free():
    weights, first = heads_of(3, n=5, d=6)
    found = circularity(weights, first, heads_of(9, n=5, d=6)[1])
    assert found.freedom.tolist() == [0, 0, 0]
    assert bool(found.overlap.isnan().all())
    assert float(found.moved.max()) == 0
    assert not bool(found.disagree(1e-6).any())


@given(seed=seeds, n=st.integers(2, 24), d=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_outputs_and_row_sums_stay(seed, n, d):
    weights, T = random_weights(seed, n, d)
    found = efficient_attention(weights, T)
    assert_close(found.efficient @ T, weights @ T)
    assert_close(found.efficient.sum(-1), weights.sum(-1))
    assert float(found.row_sum_error) < 1e-10
    again = efficient_attention(found.efficient, T)
    assert_close(again.efficient, found.efficient)


def test_negative_entries_are_counted():
    T = doubles([[1.0], [0.0], [-1.0]])
    weights = torch.eye(3).double()[:1].expand(3, 3)
    found = efficient_attention(weights, T)
    # e₀ less its part along (1, −2, 1), which is orthogonal to T and to 1.
    assert_close(found.efficient[0], doubles([5 / 6, 1 / 3, -1 / 6]))
    assert float(found.negative) == pytest.approx(1 / 3)
    assert float(found.least) == pytest.approx(-1 / 6)


def case(seed, n=10):
    weights = torch.softmax(random_weights(seed, n, 2, sharpness=2.0)[0] * 6, -1)
    return weights, structure_weights(weights, 0.12)


@given(seed=seeds, share=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_every_move_stays_on_the_simplex(seed, share):
    weights, W = case(seed)
    for direction in perturbation_directions(weights, W, seed).values():
        size = share * float(torch.linalg.matrix_norm(direction))
        after = perturbed(weights, direction, size)
        assert float(after.min()) >= 0
        assert_close(after.sum(-1), torch.ones(10).double())
        assert float(torch.linalg.matrix_norm(after - weights)) == pytest.approx(size, abs=1e-9)


def test_aware_moves_keep_the_structure_and_breaking_ones_take_it():
    weights, W = case(3)
    inside = W > 0
    moves = perturbation_directions(weights, W)
    assert float((moves["aware"] * inside).abs().max()) == 0
    assert_close((weights + moves["breaking"]) * inside, torch.zeros_like(weights))
    size = 0.3
    kept, broken = (perturbed(weights, moves[name], size) for name in ("aware", "breaking"))
    floor = W.clamp_min(1e-3)
    assert float(structure_norm(weights - broken, floor)) > 10 * float(
        structure_norm(weights - kept, floor)
    )


def test_rows_are_split_at_their_median_or_in_the_middle():
    weights = torch.full((4, 5), 0.2, dtype=torch.float64)
    structure = torch.tensor([
        [0.1, 0.2, 0.3, 0.4, 0.5],  # positive everywhere: above the median
        [0.2, 0.2, 0.2, 0.2, 0.2],  # all alike: the first half, rounded up
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0],
    ])  # fmt: skip
    kept = perturbation_directions(weights, structure)["aware"] == 0
    assert kept.tolist() == [
        [False, False, False, True, True], [True, True, True, False, False],
        [True, True, True, False, False], [False, True, False, False, False],
    ]  # fmt: skip


def test_sizes_reach_from_nothing_to_the_whole_direction():
    weights = torch.eye(3).double()
    whole = perturbation_directions(weights, torch.ones(3, 3).tril())["random"]
    reach = float(whole.norm())
    assert_close(perturbed(weights, whole, reach), weights + whole)
    assert_close(perturbed(weights, whole, 0.0), weights)
    assert_close(perturbed(weights, 0 * whole, 0.0), weights)
