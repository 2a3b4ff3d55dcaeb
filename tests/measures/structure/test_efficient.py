import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import doubles, normals, random_weights, seeded, seeds
from identilens.measures.attention import effective_attention
from identilens.measures.structure import efficient_attention


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


def test_the_same_output_is_enough_where_ones_lie_in_the_columns_of_t():
    """The draft states A₁T = A₂T; where the row sums differ, only T's own columns give one projection."""
    weights, T = random_weights(3, 10, 3)
    basis = torch.linalg.qr(T).Q
    noise = normals(seeded(4), 10, 10)
    other = weights + noise - noise @ basis @ basis.mT
    assert_close(other @ T, weights @ T)
    apart = efficient_attention(other, T).efficient - efficient_attention(weights, T).efficient
    assert float(apart.abs().max()) > 0.01, (
        "[T, 1] keeps row sums, which A₁T = A₂T says nothing about"
    )
    one, two = (effective_attention(T, weights=matrix).effective for matrix in (weights, other))
    assert_close(one, two)
    with_ones = torch.cat([T, torch.ones(10, 1, dtype=T.dtype)], 1)
    basis = torch.linalg.qr(with_ones).Q
    same = weights + noise - noise @ basis @ basis.mT
    assert_close(
        efficient_attention(same, with_ones).efficient,
        efficient_attention(weights, with_ones).efficient,
    )


def test_negative_entries_are_counted():
    T = doubles([[1.0], [0.0], [-1.0]])
    weights = torch.eye(3).double()[:1].expand(3, 3)
    found = efficient_attention(weights, T)
    # e₀ less its part along (1, −2, 1), which is orthogonal to T and to 1.
    assert_close(found.efficient[0], doubles([5 / 6, 1 / 3, -1 / 6]))
    assert float(found.negative) == pytest.approx(1 / 3)
    assert float(found.least) == pytest.approx(-1 / 6)
    assert int(found.rank) == 2
