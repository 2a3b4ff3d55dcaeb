import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import random_weights, seeds
from identilens.errors import InputError
from identilens.measures.structure import (
    perturbation_directions,
    perturbed,
    structure_norm,
    structure_weights,
)


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


def test_rows_with_one_side_only_are_split():
    weights, _ = case(4)
    for W in (torch.zeros_like(weights), torch.full_like(weights, 0.1)):
        moves = perturbation_directions(weights, W)
        for direction in moves.values():
            assert bool(torch.isfinite(direction).all())
            assert bool((direction.abs().sum(-1) > 0).all())


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
    for size in (-1e-3, reach * (1 + 1e-6)):
        with pytest.raises(InputError, match="size"):
            perturbed(weights, whole, size)
