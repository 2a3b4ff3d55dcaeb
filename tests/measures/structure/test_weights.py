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
    pattern_scores,
    positive_structure,
    structure_norm,
    structure_weights,
)
from identilens.measures.structure.patterns import pattern_of
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


N = 12
EYE = torch.eye(N).double()


def blocks(place):
    W = torch.zeros(N, N).double()
    W[:place, :place] = 1
    W[place:, place:] = 1
    return normalise_rows(W)


def column(place):
    W = torch.zeros(N, N).double()
    W[:, place] = 1
    return W


CASES = {
    "diagonal": (EYE, None), "offset": (torch.diag(torch.ones(N - 2).double(), -2) + 1e-6, -2),
    "antidiagonal": (EYE.flip(-1), None), "block": (blocks(5), 5), "vertical": (column(7), 7),
    "uniform": (torch.full((N, N), 1 / N, dtype=torch.float64), None),
}  # fmt: skip


@pytest.mark.parametrize("pattern", CASES)
def test_each_pattern_is_found(pattern):
    W, place = CASES[pattern]
    found = pattern_of(pattern_scores(W))
    assert (found.pattern, found.place) == (pattern, place)
    assert found.score > 0.98


@pytest.mark.parametrize("pattern", CASES)
def test_uniform_rows_score_nothing_on_the_others(pattern):
    scores = {one.pattern: one.score for one in pattern_scores(CASES["uniform"][0])}
    if pattern != "uniform":
        assert scores[pattern] == pytest.approx(0, abs=1e-9)


def test_half_a_diagonal_scores_half():
    scores = {one.pattern: one.score for one in pattern_scores(0.5 * EYE + 0.5 / N)}
    assert scores["diagonal"] == pytest.approx(0.5)
    assert scores["uniform"] == pytest.approx(0.5)


def test_columns_of_special_tokens_come_first():
    W = 0.6 * column(7) + 0.4 * column(0)
    assert {one.pattern: one.place for one in pattern_scores(W)}["vertical"] == 7
    special = next(one for one in pattern_scores(W, special=[0, 11]) if one.pattern == "vertical")
    assert special.place == 0
    assert special.score == pytest.approx((0.4 - 1 / N) / (1 - 1 / N))


def test_neighbourhoods_are_local_and_no_blocks():
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs()
    found = pattern_of(pattern_scores((distance <= 3).double()))
    assert found.pattern == "local"
    scores = {one.pattern: one.score for one in pattern_scores((distance <= 1).double())}
    assert scores["block"] < 0.25 < scores["local"]
    assert pattern_of(pattern_scores(EYE + 0.05 * (distance <= 3))).pattern == "diagonal"


def test_no_pattern_is_mixed():
    places = (5 * torch.arange(N) + 6) % N
    assert pattern_of(pattern_scores(EYE[places])) is None
    assert pattern_of(pattern_scores(torch.zeros(N, N))) is None


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
    assert (found.one, found.infinity) == (5, 7)
    assert found.frobenius == pytest.approx(26**0.5)


def test_zeros_make_it_a_seminorm_and_are_refused():
    with pytest.raises(InputError, match="positive_structure"):
        structure_norm(ANTIDIAGONAL, IDENTITY)
    W = positive_structure(IDENTITY, 0.1)
    assert float(structure_norm(ANTIDIAGONAL, W)) == pytest.approx(0.1 / 4)
    assert_close(positive_structure(torch.zeros(2, 2)), torch.ones(2, 2))
