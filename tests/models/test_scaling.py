"""Attention calls without a scaling of their own: one over the root of the size of a query."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from helpers.heads import seeded
from identilens.models.eager import eager_attention_forward
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall


@pytest.fixture
def call():
    """Sizes that all differ: 2 heads, 5 queries, 7 keys, d_k = 3, d_v = 4."""
    generator = seeded()
    query, key = (torch.randn(1, 2, n, 3, generator=generator) for n in (5, 7))
    value = torch.randn(1, 2, 7, 4, generator=generator)
    return AttentionCall(
        0,
        nn.Identity(),
        query,
        key,
        value,
        None,
        {"is_causal": False},
        sdpa_attention_forward,
        eager_attention_forward,
    )


def test_a_captured_layer_knows_that_scaling(call, unchecked_shapes):
    weights = torch.softmax(call.query @ call.key.mT / 3**0.5, -1)
    layer = CapturedLayer.of(call, None, call.run(), weights)
    assert layer.scaling == pytest.approx(3**-0.5)
    assert_close(layer.head(1).recomputed.float(), weights[0, 1])
