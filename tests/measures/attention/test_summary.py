"""The scalars from blocks of rows equal those of the whole map, for tensors that come from anywhere."""

import pytest
import torch

from helpers.reference import effective_svd
from identilens.linalg import ProjectedValues, row_factor
from identilens.measures.attention import SummaryBuilder, effective_attention


def summarise(values, projection, weights, visible, block):
    n = weights.shape[1]
    builder = SummaryBuilder(ProjectedValues.of(values, projection), n, visible)
    for start in range(0, n, block):
        rows = slice(start, min(start + block, n))
        builder.add(rows, weights[:, rows], weights[:, rows] @ values @ row_factor(projection))
    return builder.finish()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [7, 256])
def test_summary_of_blocks_equals_the_whole_map(causal, block):
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = torch.randn(3, 2, 40, 8, generator=generator, dtype=torch.float64)
    projection = torch.randn(2, 8, 24, generator=generator, dtype=torch.float64)
    logits = queries @ keys.mT * 0.5
    visible = torch.ones(40, 40).tril().bool() if causal else None
    logits = logits if visible is None else logits.masked_fill(~visible, -torch.inf)
    found = summarise(values, projection, logits.softmax(-1), "causal" if causal else None, block)
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
    builder = SummaryBuilder(ProjectedValues(compact, 3), 20)
    weights = torch.full((1, 20, 20), 1 / 20, dtype=torch.float64)
    builder.add(slice(0, 20), weights, weights @ compact)
    assert torch.isnan(builder.finish().pearson).all()


@pytest.mark.parametrize("n", [6, 70])
@pytest.mark.parametrize("mask", ["full", "causal", "window", "prefix"])
def test_summary_and_public_measure_share_one_projector(mask, n):
    """What the audit writes follows from the effective attention that a user computes."""
    generator = torch.Generator().manual_seed(n)
    values, logits = (torch.randn(2, n, m, generator=generator, dtype=torch.float64) for m in (8, n))
    projection = torch.randn(2, 8, 24, generator=generator, dtype=torch.float64)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    masks = {"causal": j <= i, "window": (j <= i) & (j > i - 11), "prefix": (j <= i) | (j < n // 3)}
    visible = masks.get(mask)
    weights = (logits if visible is None else logits.masked_fill(~visible, -torch.inf)).softmax(-1)
    found = summarise(values, projection, weights, visible, 16)
    public = effective_attention(values, weights=weights, output_projection=projection, visible=visible)
    share = public.null.square().sum((1, 2)) / weights.square().sum((1, 2))
    torch.testing.assert_close(found.null_share, share, atol=1e-12, rtol=0)
    T = values @ projection
    error = torch.linalg.matrix_norm((public.effective - weights) @ T) / torch.linalg.matrix_norm(weights @ T)
    torch.testing.assert_close(found.reconstruction_error, error, atol=1e-12, rtol=0)
    last = public.rank if visible is None else public.rank[:, -1]
    assert torch.equal(found.rank, last)
