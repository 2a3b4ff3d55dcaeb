"""What is refused before an alternative is sought, and what comes back when there is nothing to do."""

import pytest
import torch

from helpers.heads import causal, random_weights
from identilens.errors import InputError
from identilens.measures.attention import (
    effective_attention,
    far_alternatives,
    least_logit_rank,
    maximum_entropy_alternative,
    numerical_rank,
    sample_alternatives,
)

METHODS = ("brunner", "bhardwaj", "uniform")


@pytest.mark.parametrize("visible", ["causal", causal(5)])
@pytest.mark.parametrize("heads", [(), (2, 3)])
def test_weight_on_hidden_keys_has_no_effective_part(visible, heads):
    """The projector would spread what stands on the hidden keys over the visible ones."""
    values = torch.randn(*heads, 5, 3, dtype=torch.float64)
    weights = torch.rand(*heads, 5, 5, dtype=torch.float64).mul(0.1).tril() + torch.eye(5)
    expected = effective_attention(values, weights=weights, visible=visible)
    rounded = weights.clone()
    rounded[..., 1, 3] = 9e-4
    found = effective_attention(values, weights=rounded, visible=visible)
    assert torch.equal(found.effective, expected.effective)
    assert torch.equal(found.null, expected.null)
    rounded[(*(size - 1 for size in heads), 1, 3)] = 0.01
    where = r"row 1 of head \[1, 2\] puts 0.01" if heads else "row 1 puts 0.01"
    with pytest.raises(
        InputError, match=f"no weight on hidden keys; {where} on a key that `visible` hides"
    ):
        effective_attention(values, weights=rounded, visible=visible)


@pytest.mark.parametrize("visible", [None, torch.ones(0, 5, dtype=torch.bool)])
def test_no_query_gives_no_alternative(visible):
    _, T = random_weights(0, 5, 2)
    none = torch.zeros(0, 5).double()
    assert effective_attention(T, weights=none, visible=visible).effective.shape == (0, 5)
    for method in METHODS:
        assert sample_alternatives(none, T, 2, method=method, visible=visible).shape == (2, 0, 5)
    assert far_alternatives(none, T, visible=visible).shape == (0, 5)
    even = maximum_entropy_alternative(none, T, visible=visible)
    assert (even.weights.shape, even.queries.shape, even.keys.shape) == ((0, 5), (0, 2), (5, 2))


@pytest.mark.parametrize("visible", [None, "causal", causal(5), causal(5).T | causal(5)])
def test_no_head_gives_empty_results(visible):
    values, weights = torch.zeros(0, 3, 5, 2), torch.zeros(0, 3, 5, 5)
    found = effective_attention(values, weights=weights, visible=visible)
    assert found.effective.shape == (0, 3, 5, 5)
    assert found.rank.shape == found.nullity.shape == ((0, 3) if visible is None else (0, 3, 5))
    report = numerical_rank(values, torch.zeros(3, 2, 8))
    assert report.rank.shape == report.simplex_nullity.shape == (0, 3)
    assert least_logit_rank(torch.zeros(0, 5, 5)).shape == (0,)
    assert int(least_logit_rank(torch.zeros(0, 5))) == 0
