"""The least logit rank of alternatives: ranks known by construction."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.heads import normals, random_qkt, seeded, seeds
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
