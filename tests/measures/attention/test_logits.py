"""The least logit rank of alternatives: ranks known by construction."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.heads import normals, random_qkt, seeded, seeds
from identilens.errors import InputError
from identilens.measures.attention import pattern_keys
from identilens.measures.attention.logits import (
    least_logit_rank,
    logit_rank_study,
)


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
    assert int(least_logit_rank(weights, tolerance=1e-10, choice="first")) == rank


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
