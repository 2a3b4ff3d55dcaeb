"""Raw logits (Prop. 3.3) and the least logit rank of alternatives: ranks known by construction."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.heads import normals, random_qkt, seeded, seeds
from identilens.measures.attention.logits import (
    check_logit_alternative,
    least_logit_rank,
    logit_alternative,
    logit_rank_study,
)


@settings(max_examples=15, deadline=None)
@given(seed=seeds, n=st.integers(3, 25), d_k=st.integers(1, 10), d_v=st.integers(1, 10))
def test_proposition_3_3(seed, n, d_k, d_v):
    Q, K, T = random_qkt(seed, n, d_k, min(d_v, n - 1))
    logits = Q @ K.T / d_k**0.5
    found = logit_alternative(logits, T, d_k, scale=0.5, generator=seeded(seed))
    assert found.producible
    assert torch.linalg.matrix_rank(found.logits) <= d_k
    assert found.original_rank == min(n, d_k)
    assert torch.allclose(
        found.logits @ T, logits @ T, atol=1e-8 * float((logits @ T).abs().max() + 1)
    )
    assert found.distance == pytest.approx(0.5)
    assert float(
        torch.linalg.matrix_norm(found.logits - logits) / torch.linalg.matrix_norm(logits)
    ) == pytest.approx(0.5)


def test_the_check_sees_what_is_wrong():
    Q, K, T = random_qkt(0, 20, 4, 6)
    logits = Q @ K.T
    noisy = check_logit_alternative(
        logits, logits + 0.1 * torch.randn(20, 20, generator=seeded()), T, 4
    )
    assert not noisy.producible
    assert noisy.rank == 20
    assert noisy.output_error > 0.01
    null = torch.linalg.svd(T).U[:, 6:]
    free = check_logit_alternative(
        logits, logits + torch.randn(20, 14, generator=seeded()).double() @ null.T, T, 4
    )
    assert free.rank == 4 + 14  # in LN(T) row by row, but of too high a rank
    assert free.output_error < 1e-12


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


def test_no_constants_give_a_smaller_rank():
    weights = torch.softmax(normals(seeded(), 8, 8), -1)
    least = int(least_logit_rank(weights))
    assert least == 7
    for seed in range(20):
        constants = 3 * normals(seeded(seed), 8, 1)
        assert torch.linalg.matrix_rank(torch.log(weights) + constants) >= least


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
