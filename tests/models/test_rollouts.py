"""Rollouts of one text, against plain references from the modules of the models themselves."""

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.reference import effective_svd
from helpers.zoo import build, ids
from identilens.measures.mixing import alti_contributions
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads
from identilens.models.rollouts import final_rollouts, text_rollouts

N = 7


def plain_parts(layer, captured, stream):
    """T_ij before any norm, [query, key, d_model], head by head and key by key."""
    parts = torch.zeros(N, N, stream.shape[1]).double()
    for head in captured.heads:
        values = head.values @ head.output_projection
        parts += head.weights[:, :, None] * values[None]
    return parts


def references(family):
    """Norms and ALTI contributions of each layer, and the norm's output that ALTI's parts must add up to."""
    lens = idl.Lens(build(family).double())
    [text] = lens.capture(ids(N), weights=True, hidden_states=True)
    norms, contributions = [], []
    for number, captured in enumerate(text.layers):
        stream = text.hidden_states["encoder"][number]
        parts = plain_parts(number, captured, stream)
        norms.append(parts.norm(dim=-1))
        whole = parts + torch.eye(N)[:, :, None] * stream[None]
        output = whole.sum(1) + captured.site.output_bias
        if family == "bert":
            norm = lens.body.encoder.layer[number].attention.output.LayerNorm
            sigma = (output.var(-1, unbiased=False) + norm.eps).sqrt()
            whole = (whole - whole.mean(-1, keepdim=True)) / sigma[:, None, None] * norm.weight
            output = norm(output)
        contributions.append(alti_contributions(whole, output))
    return lens, norms, contributions


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_rollouts_are_those_of_plain_products(family):
    """A norm after the attention block, and one before it with grouped heads."""
    with torch.no_grad():
        lens, norms, contributions = references(family)
        [item] = lens.read([ids(N)])
        found = final_rollouts(lens, item)
        expected = attention_rollout(torch.stack([mean_over_heads(one[None]) for one in norms]))[-1]
        assert_close(found["norm"], expected)
        assert_close(found["alti"], contributions[1] @ contributions[0], atol=1e-6, rtol=1e-5)
        [pair] = text_rollouts(lens, item).values()
        assert_close(found["raw"], pair.raw[-1], atol=1e-6, rtol=1e-5)
        assert_close(found["effective"], pair.effective[-1], atol=1e-6, rtol=1e-5)
    for one in found.values():
        assert_close(one.sum(-1), torch.ones(N).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", ["bert", "llama"])
@torch.no_grad()
def test_effective_rollouts_are_those_of_effective_attention_over_the_keys_that_are_seen(family):
    count = 20  # more than d_v: weights and effective attention differ
    lens = idl.Lens(build(family).double())
    [text] = lens.capture(ids(count), weights=True)
    visible = torch.ones(count, count).tril().bool() if family == "llama" else None
    means = []
    for captured in text.layers:
        heads = [
            effective_svd(head.weights, head.values @ head.output_projection, visible)
            for head in captured.heads
        ]
        means.append(mean_over_heads(torch.stack(heads)))
    [pair] = text_rollouts(lens, lens.read([ids(count)])[0]).values()
    expected = attention_rollout(torch.stack(means))
    assert (pair.effective - pair.raw).abs().max() > 0.01
    assert_close(pair.effective, expected, atol=1e-6, rtol=1e-5)
