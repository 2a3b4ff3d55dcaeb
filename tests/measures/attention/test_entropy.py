"""The maximum-entropy alternative: by hand, by its conditions, and as queries and keys of a real head."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.heads import (
    causal,
    doubles,
    load_encoder,
    normals,
    random_qkt,
    random_weights,
    real_head,
    seeded,
    seeds,
)
from identilens.errors import InputError
from identilens.measures.attention import pattern_keys
from identilens.measures.attention.entropy import maximum_entropy_alternative
from identilens.measures.attention.logits import (
    least_logit_rank,
    logit_rank_study,
)
from identilens.measures.attention.realisable.softmax_map import realisable_dimension, softmax_map
from identilens.measures.attention.samplers import sample_alternatives


def test_by_hand():
    # Keys at 0, 1 and 1/2: the uniform distribution is an alternative of (0.2, 0.2, 0.6).
    T = doubles([[0.0], [1.0], [0.5]])
    found = maximum_entropy_alternative(doubles([[0.2, 0.2, 0.6]]), T)
    assert found.weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert found.entropy.item() == pytest.approx(math.log(3))
    assert found.needed_d_k == 1


@settings(max_examples=15, deadline=None)
@given(
    seed=seeds,
    n=st.integers(2, 18),
    d=st.integers(1, 6),
    sharpness=st.sampled_from([0.5, 3.0, 10.0]),
    masked=st.booleans(),
)
@example(seed=691, n=7, d=6, sharpness=10.0, masked=False)  # rows that are nearly one-hot
def test_no_alternative_has_more_entropy_and_the_factors_give_it(seed, n, d, sharpness, masked):
    visible = causal(n) if masked else None
    A, T = random_weights(seed, n, d, sharpness, visible)
    found = maximum_entropy_alternative(A, T, visible=visible)
    assert (found.weights @ T - A @ T).abs().max() < 1e-7
    assert (found.weights.sum(-1) - 1).abs().max() < 1e-12
    logits = found.queries @ found.keys.T
    logits = logits if visible is None else logits.masked_fill(~visible, -torch.inf)
    assert torch.allclose(torch.softmax(logits, -1), found.weights, atol=1e-8)
    # The output is met to 1e-9, and -p log(p) is as steep as -log(p), here at most 40, in each of the n weights.
    slack = 40e-9 * n
    drawn = sample_alternatives(A, T, 10, visible=visible, generator=seeded(seed))
    assert (torch.special.entr(drawn).sum(-1) <= found.entropy + slack).all()
    assert (found.original_entropy <= found.entropy + slack).all()


def test_with_a_bias_the_same_head_can_produce_it():
    A, T = random_weights(0, 14, 4)
    bias = normals(seeded(1), 14, 14)
    found = maximum_entropy_alternative(A, T, bias=bias)
    assert torch.allclose(
        torch.softmax(found.queries @ found.keys.T + bias, -1), found.weights, atol=1e-10
    )
    assert torch.allclose(found.weights @ T, A @ T, atol=1e-9)


def test_a_real_head_could_have_attended_otherwise(bundled_path):
    head = real_head(*load_encoder(bundled_path), 3, 7)
    T = head.values @ head.output_projection
    found = maximum_entropy_alternative(head.weights, T)
    assert found.needed_d_k == 32 == head.queries.shape[1]
    lost = torch.linalg.matrix_norm((found.weights - head.weights) @ T) / torch.linalg.matrix_norm(
        head.weights @ T
    )
    assert lost < 1e-9
    assert float((found.weights - head.weights).abs().sum(-1).mean() / 2) > 0.1
    # It is a point of the same family: queries and keys of the head's own size, with the same dimension.
    dimension = realisable_dimension(softmax_map(found.queries, found.keys, T, scaling=1.0))
    assert dimension.dimension == dimension.formula


@pytest.mark.parametrize("first", [None, 50.0])  # 50: one key's values lie far outside the others'
def test_one_hot_rows_at_corners_are_approached(first):
    _, T = random_weights(0, 8, 3)
    if first is not None:
        T[0] = first
    found = maximum_entropy_alternative(torch.eye(8).double(), T)
    assert found.output_error < 1e-9
    assert (found.weights @ T - T).abs().max() < 1e-7


@settings(max_examples=15, deadline=None)
@given(seed=seeds, n=st.integers(2, 25), rank=st.integers(0, 12), shift=st.floats(-5, 5))
def test_least_rank_of_weights_made_from_logits_of_known_rank(seed, n, rank, shift):
    # Rows of rank `rank` that sum to zero, and any constants: the softmax takes the constants away again.
    rank = min(rank, n - 1)
    generator = seeded(seed)
    right = normals(generator, rank, n)
    right = right - right.mean(1, keepdim=True)
    logits = normals(generator, n, rank) @ right / max(1, rank) ** 0.5
    weights = torch.softmax(logits + shift * torch.randn(n, 1, generator=generator), -1)
    assert int(least_logit_rank(weights, tolerance=1e-10)) == rank


def test_ranks_of_a_batch_and_of_uniform_weights():
    batch = torch.stack(
        [torch.full((5, 5), 0.2), torch.softmax(torch.randn(5, 5, generator=seeded()), -1)]
    )
    assert least_logit_rank(batch, tolerance=1e-6).tolist() == [0, 4]


def test_study_of_a_random_head():
    Q, K, T = random_qkt(3, 30, 6, 10)
    A = torch.softmax(Q @ K.T / 6**0.5, -1)
    study = logit_rank_study(A, T, 6, count=20, generator=seeded())
    assert study.original_rank == 6
    assert study.ranks.shape == (20,)
    assert study.ranks.tolist() == [29] * 20  # all but the direction that the constants take away
    assert study.realisable_share == 0.0
    assert study.simplex_nullity == 19
    assert study.output_error < 1e-12
    assert 0 < study.mean_total_variation < 1
    again = logit_rank_study(A, T, 6, count=20, generator=seeded())
    assert again.mean_total_variation == study.mean_total_variation


TOKENS = ["[CLS]", "a", "b", ",", "a", "c", "b", "[SEP]"]


def keys(pattern, query, visible=None):
    found = pattern_keys(pattern, TOKENS, query, visible)
    return None if found is None else found.nonzero().flatten().tolist()


def test_the_keys_of_each_pattern():
    assert [keys("previous", q) for q in (0, 1, 7)] == [None, [0], [6]]
    assert [keys("next", q) for q in (0, 7)] == [[1], None]
    assert keys("current", 3) == [3]
    assert keys("first", 5) == [0]
    assert [keys("duplicate", q) for q in (1, 4, 5)] == [[4], [1], None]
    assert [keys("induction", q) for q in (1, 4, 6, 3)] == [[5], [2], [3], None]
    assert keys("separator", 2) == [7]
    assert keys("punctuation", 2) == [3]
    assert pattern_keys("punctuation", [" ?!", "a.", " ", ","], 0).tolist() == [
        True, False, False, True,
    ]  # fmt: skip
    causal = torch.arange(8) <= 4
    assert keys("induction", 1, torch.arange(8) <= 1) is None
    assert keys("induction", 4, causal) == [2]
    assert keys("separator", 4, causal) is None
    assert keys("current", 0, torch.arange(8) < 1) is None, "it sees nothing else"
    for query in (-1, 8):
        with pytest.raises(InputError, match="patterns"):
            keys("previous", query)
    with pytest.raises(InputError, match="'other'"):
        keys("other", 1)
