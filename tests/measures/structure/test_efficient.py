import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import doubles, random_weights, seeds
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


def test_negative_entries_are_counted():
    T = doubles([[1.0], [0.0], [-1.0]])
    weights = torch.eye(3).double()[:1].expand(3, 3)
    found = efficient_attention(weights, T)
    # e₀ less its part along (1, −2, 1), which is orthogonal to T and to 1.
    assert_close(found.efficient[0], doubles([5 / 6, 1 / 3, -1 / 6]))
    assert float(found.negative) == pytest.approx(1 / 3)
    assert float(found.least) == pytest.approx(-1 / 6)
    assert int(found.rank) == 2
