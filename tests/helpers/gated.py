"""Families with a gate or a norm before the output projection, and that as each family computes it."""

import torch
import transformers as hf
from torch import nn

from helpers.zoo import _HYBRID, _LLAMA, _random
from identilens.models import Lens

_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_LAYERS = {"layer_types": ["linear_attention", "full_attention"] * 2, "head_dim": 8}


def _half(attention, states):
    both = attention.q_proj(states).unflatten(-1, (-1, 2 * attention.head_dim))
    return both.chunk(2, -1)[1].sigmoid()


def _entries(attention, states):
    return attention.gate_proj(states).unflatten(-1, (-1, attention.head_dim)).sigmoid()


def _heads(attention, states):
    gates = nn.functional.softplus(attention.g_proj(states))[..., None]
    return gates.expand(-1, -1, -1, attention.head_dim)


GATED = {
    "qwen3_next": (
        lambda: hf.Qwen3NextForCausalLM(
            hf.Qwen3NextConfig(
                **_HYBRID, **_DELTA, **_EXPERTS, **_LAYERS, shared_expert_intermediate_size=16
            )
        ),
        _half,
    ),
    "qwen3_5": (
        lambda: hf.Qwen3_5ForCausalLM(hf.Qwen3_5TextConfig(**_HYBRID, **_DELTA, **_LAYERS)),
        _half,
    ),
    "afmoe": (
        lambda: hf.AfmoeForCausalLM(
            hf.AfmoeConfig(**_LLAMA, **_EXPERTS, head_dim=8, num_dense_layers=2, sliding_window=4)
        ),
        _entries,
    ),
    "laguna": (
        lambda: hf.LagunaForCausalLM(
            hf.LagunaConfig(**_LLAMA, **_EXPERTS, head_dim=8, shared_expert_intermediate_size=16)
        ),
        _heads,
    ),
}
"""Models by family, and the gate of an attention module as its family computes it, from the states that it reads."""


def gated(family):
    torch.manual_seed(0)
    model = _random(GATED[family][0]()).double()
    model.set_experts_implementation("eager")
    return Lens(model)


_MOE = {
    "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "moe_hidden_size": 16,
}  # fmt: skip


def _one_norm(attention, states, mixed):
    """BitNet: one norm of all heads together."""
    joined = mixed.flatten(1)
    scale = joined.square().mean(-1, keepdim=True).add(attention.attn_sub_norm.variance_epsilon)
    return joined * scale.rsqrt() * attention.attn_sub_norm.weight


def _norms_and_gate(attention, states, mixed):
    """Muse Spark: a norm of each head, then a gate."""
    scale = mixed.square().mean(-1, keepdim=True).add(attention.o_norm.eps).rsqrt()
    return (mixed * scale).flatten(1) * attention.gate_proj(states[0]).sigmoid()


NORMED = {
    "bitnet": (lambda: hf.BitNetForCausalLM(hf.BitNetConfig(**_LLAMA)), _one_norm),
    "muse_spark": (
        lambda: hf.MuseSparkTextModel(hf.MuseSparkTextConfig(**_LLAMA, **_MOE)),
        _norms_and_gate,
    ),
}
"""Models by family, and what an attention module projects, as its family computes it from states and mixtures."""


def normed(family="bitnet"):
    torch.manual_seed(0)
    model = _random(NORMED[family][0]()).double()
    if family != "bitnet":
        model.set_experts_implementation("eager")
    return Lens(model)
