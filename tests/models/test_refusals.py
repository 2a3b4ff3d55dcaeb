"""Families that bypass the interface, or change the attention output, are refused by name."""

import pytest
import transformers as hf
from torch import nn

from helpers.zoo import build, ids
from identilens.errors import UnsupportedModelError
from identilens.models import Lens

OWN_ATTENTION = {
    "xlnet": lambda: hf.XLNetModel(hf.XLNetConfig(vocab_size=96, d_model=32, n_layer=1, n_head=4, d_inner=32)),
    "longformer": lambda: hf.LongformerModel(
        hf.LongformerConfig(
            vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
            attention_window=4,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", sorted(OWN_ATTENTION))
def test_families_beyond_weights_times_values_are_refused_saying_why(family):
    model, reason = OWN_ATTENTION[family]
    with pytest.raises(UnsupportedModelError, match=reason):
        next(Lens(model().eval()).capture([ids(8)]))


def test_gated_attention_output_is_refused():
    config = hf.Qwen3NextConfig(
        vocab_size=96, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, layer_types=["full_attention"], num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16, decoder_sparse_step=1,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="changes the attention output before it is projected"):
        next(Lens(hf.Qwen3NextForCausalLM(config)).capture([ids(8)]))


def test_partial_bypass_is_refused():
    """One attention module of several that computes by itself would leave its heads unaudited."""

    class OwnAttention(nn.Module):
        def forward(self, hidden_states, *args, **kwargs):
            return hidden_states, None

    model = build("bert")
    model.encoder.layer[1].attention.self = OwnAttention()
    with pytest.raises(UnsupportedModelError, match="OwnAttention does its own attention"):
        next(Lens(model).capture([ids(8)]))
