"""The scalars from blocks of rows equal those of the whole map, for tensors that come from anywhere."""

import pytest
import torch

from helpers.reference import effective_svd
from identilens.linalg import compact_values, row_factor
from identilens.measures.attention import SummaryBuilder, softmax_blocks


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [7, 256])
def test_summary_of_blocks_equals_the_whole_map(causal, block):
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = torch.randn(3, 2, 40, 8, generator=generator, dtype=torch.float64)
    projection = torch.randn(2, 8, 24, generator=generator, dtype=torch.float64)
    compact = compact_values(values, projection)
    builder = SummaryBuilder(compact, 24, 40, "causal" if causal else None)
    for rows, weights in softmax_blocks(queries, keys, 0.5, causal=causal, block=block):
        builder.add(rows, weights, weights @ values @ row_factor(projection))
    found = builder.finish()
    logits = queries @ keys.mT * 0.5
    visible = torch.ones(40, 40).tril().bool() if causal else None
    logits = logits if visible is None else logits.masked_fill(~visible, -torch.inf)
    for head, weights in enumerate(logits.softmax(-1)):
        effective = effective_svd(weights, values[head] @ projection[head], visible)
        seen = torch.ones(40, 40).bool() if visible is None else visible
        null_share = (weights - effective).square().sum() / weights.square().sum()
        assert float(found.null_share[head]) == pytest.approx(float(null_share), abs=1e-9)
        pearson = torch.corrcoef(torch.stack([weights[seen], effective[seen]]))[0, 1]
        assert float(found.pearson[head]) == pytest.approx(float(pearson), abs=1e-9)
        assert float(found.raw_received[head]) == pytest.approx(40)
        assert float(found.effective_received[head]) == pytest.approx(float(effective.sum()), abs=1e-8)
    assert found.reconstruction_error.max() < 1e-9
    assert found.rank.tolist() == [8, 8]
    assert found.simplex_nullity.tolist() == [31, 31]


def test_uniform_weights_have_no_correlation():
    compact = torch.randn(1, 20, 3, dtype=torch.float64)
    builder = SummaryBuilder(compact, 3, 20)
    weights = torch.full((1, 20, 20), 1 / 20, dtype=torch.float64)
    builder.add(slice(0, 20), weights, weights @ compact)
    assert torch.isnan(builder.finish().pearson).all()
