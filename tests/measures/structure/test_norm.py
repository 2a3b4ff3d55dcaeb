import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import doubles, normals, seeded, seeds, uniforms
from identilens.errors import InputError
from identilens.measures.structure import matrix_norms, positive_structure, structure_norm

ANTIDIAGONAL = torch.eye(4).double().flip(-1)
IDENTITY = torch.eye(4).double()
EPSILON = 0.01


def draft_structure():
    return torch.where(IDENTITY > 0, 1.0, EPSILON).double()


def random_case(seed, n=5):
    generator = seeded(seed)
    matrices = normals(generator, 2, n, n)
    return matrices, uniforms(generator, n, n) + 1e-3


@given(seed=seeds, factor=st.floats(-50, 50))
@settings(max_examples=50, deadline=None)
def test_the_axioms_of_a_norm(seed, factor):
    (one, two), W = random_case(seed)
    assert float(structure_norm(one, W)) > 0
    assert float(structure_norm(torch.zeros_like(one), W)) == 0
    assert_close(structure_norm(factor * one, W), abs(factor) * structure_norm(one, W))
    assert (
        float(structure_norm(one + two, W))
        <= float(structure_norm(one, W) + structure_norm(two, W)) + 1e-12
    )
    assert_close(structure_norm(one - two, W), structure_norm(two - one, W))


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
    assert (found.one, found.infinity) == (5, 7)
    assert found.frobenius == pytest.approx(26**0.5)


def test_zeros_make_it_a_seminorm_and_are_refused():
    with pytest.raises(InputError, match="positive_structure"):
        structure_norm(ANTIDIAGONAL, IDENTITY)
    W = positive_structure(IDENTITY, 0.1)
    assert float(structure_norm(ANTIDIAGONAL, W)) == pytest.approx(0.1 / 4)
    assert_close(positive_structure(torch.zeros(2, 2)), torch.ones(2, 2))
