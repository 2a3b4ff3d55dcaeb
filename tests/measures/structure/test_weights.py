import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import doubles, random_weights
from identilens.errors import InputError
from identilens.measures.structure import (
    cut,
    matrix_norms,
    positive_structure,
    structure_norm,
    structure_weights,
)
from identilens.measures.structure.weights import normalise_rows


def stack(count=5, n=8):
    return [random_weights(seed, n, 2, sharpness=2.0)[0] for seed in range(count)]


def test_by_hand():
    summed = torch.tensor([[0.9, 0.1], [0.3, 0.3], [0.05, 0.1]])
    assert_close(cut(summed, 0.3), torch.tensor([[0.9, 0.0], [0.3, 0.3], [0.0, 0.0]]))
    assert_close(structure_weights(summed, 0.3), torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]))


@given(threshold=st.floats(0, 1), count=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_mean_at_l_is_the_sum_at_n_l(threshold, count):
    weights = stack(count)
    summed = torch.stack(weights).sum(0)
    W = structure_weights(summed / count, threshold)
    assert_close(W, normalise_rows(cut(summed, threshold * count)), atol=1e-9, rtol=0)
    sums = W.sum(-1)
    assert bool(((sums - 1).abs() < 1e-9).logical_or(sums == 0).all())


ANTIDIAGONAL = torch.eye(4).double().flip(-1)
IDENTITY = torch.eye(4).double()
EPSILON = 0.01


def draft_structure():
    return torch.where(IDENTITY > 0, 1.0, EPSILON).double()


def test_the_numbers_of_the_draft():
    """1/4 and ε/4, the other way round: w_ii = 1 weighs the identity, and the draft's A₁ is the antidiagonal."""
    W = draft_structure()
    assert float(structure_norm(IDENTITY, W)) == pytest.approx(1 / 4)
    assert float(structure_norm(ANTIDIAGONAL, W)) == pytest.approx(EPSILON / 4)
    mirrored = W.flip(-1)
    assert float(structure_norm(ANTIDIAGONAL, mirrored)) == pytest.approx(1 / 4)
    assert float(structure_norm(IDENTITY, mirrored)) == pytest.approx(EPSILON / 4)
    assert float(structure_norm(ANTIDIAGONAL - IDENTITY, W)) == pytest.approx((1 + EPSILON) / 4)


def test_norms_by_hand():
    matrix = doubles([[3.0, -4.0], [0.0, 1.0]])
    W = doubles([[1.0, 2.0], [3.0, 4.0]])
    found = matrix_norms(matrix, W)
    assert found.structure == pytest.approx((3 + 8 + 4) / 4)
    assert (found.column_sum, found.infinity) == (5, 7)
    assert found.frobenius == pytest.approx(26**0.5)


def test_zeros_make_it_a_seminorm_and_are_refused():
    with pytest.raises(InputError, match="positive_structure"):
        structure_norm(ANTIDIAGONAL, IDENTITY)
    W = positive_structure(IDENTITY, 0.1)
    assert float(structure_norm(ANTIDIAGONAL, W)) == pytest.approx(0.1 / 4)
    assert_close(positive_structure(torch.zeros(2, 2)), torch.ones(2, 2))
