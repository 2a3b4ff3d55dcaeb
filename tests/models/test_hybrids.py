"""Models of which only some layers hold attention: the others are named, and layers keep their own numbers."""

import re

import pytest
import torch
import transformers as hf
from torch import nn
from torch.testing import assert_close

from helpers.zoo import _LLAMA, HYBRIDS, _random, build, ids
from identilens.errors import UnsupportedModelError
from identilens.models import Lens
from identilens.models.rollouts import self_attention


@pytest.mark.parametrize("family", sorted(HYBRIDS))
def test_layers_keep_their_numbers_and_the_others_are_named(family):
    model = build(family)
    model.set_attn_implementation("eager")
    lens = Lens(model)
    text = next(lens.capture([ids(9)], weights=True))
    assert [(layer.site.layer, layer.site.kind) for layer in text.layers] == [
        (1, "decoder"),
        (3, "decoder"),
    ]
    assert [name.split(" ")[0] for name in lens.other_layers] == ["layers.0", "layers.2"]
    with torch.no_grad():
        reported = [
            one
            for one in model(torch.tensor([ids(9)]), output_attentions=True).attentions
            if one is not None
        ]
    for layer, own in zip(text.layers, reported[-2:], strict=True):
        assert_close(layer.weights, own[0], atol=5e-5, rtol=0)


class Convolved(nn.Module):
    """A layer whose output is mixed by a convolution over positions, in either direction."""

    def __init__(self, layer, taps):
        super().__init__()
        self.layer, self.taps = layer, torch.tensor(taps)

    def forward(self, hidden_states, *args, **kwargs):
        states = self.layer(hidden_states, *args, **kwargs)
        padded = torch.nn.functional.pad(hidden_states, (0, 0, 1, 1))
        return states + sum(
            tap * padded[:, at : at + states.shape[1]] for at, tap in enumerate(self.taps)
        )


def convolved(taps):
    model = build("llama")
    model.model.layers[1] = Convolved(model.model.layers[1], taps)
    return Lens(model)


def shifted():
    """Values that hold a part of the position before."""
    model = build("llama")
    model.model.layers[1].self_attn.v_proj.register_forward_hook(
        lambda _, args, output: output + output.roll(1, 1)
    )
    return Lens(model)


def falcon_h1():
    config = hf.FalconH1Config(
        **_LLAMA, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4
    )
    return Lens(_random(hf.FalconH1ForCausalLM(config)))


def conformer():
    config = hf.Wav2Vec2ConformerConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=[8], conv_kernel=[4],
        conv_stride=[4], num_feat_extract_layers=1, conv_depthwise_kernel_size=3, num_conv_pos_embedding_groups=2,
        num_conv_pos_embeddings=4,
    )  # fmt: skip
    return Lens(_random(hf.Wav2Vec2ConformerModel(config)))


SOUND = {"input_values": torch.linspace(0, 40, 64).sin()[None]}
MIXING = {
    "state space": (falcon_h1, [ids(9)], ["layers.0 (FalconH1", "layers.1 (FalconH1"]),
    "convolution": (conformer, SOUND, ["encoder.layers.0 (Wav2Vec2", "encoder.layers.1 (Wav2Vec2"]),
    "beside the attention of one layer": (
        lambda: Lens(build("zamba")),
        [ids(9)],
        ["layers.1 (Zamba", "layers.3 (Zamba"],
    ),
    "of earlier positions": (lambda: convolved([0.1, 0.0, 0.0]), [ids(9)], ["layers.1 (Conv"]),
    "of later positions": (lambda: convolved([0.0, 0.0, 0.01]), [ids(9)], ["layers.1 (Conv"]),
    "of values": (shifted, [ids(9)], ["layers.1 (Llama"]),
    "none": (lambda: convolved([0.0, 0.1, 0.0]), [ids(9)], []),
}


@pytest.mark.parametrize("mixer", MIXING)
def test_what_mixes_positions_beside_attention_is_found_by_its_effect(mixer):
    make, inputs, expected = MIXING[mixer]
    torch.manual_seed(0)
    lens = make()
    item = lens.read(inputs)[0]
    lens.sites(item)
    assert len(lens.mixing_layers) == len(expected)
    assert all(map(str.startswith, lens.mixing_layers, expected)), lens.mixing_layers
    if not expected:
        assert "layers_with_other_mixers" not in lens.facts
        return
    assert lens.facts["layers_with_other_mixers"] == list(lens.mixing_layers)
    with pytest.raises(
        UnsupportedModelError,
        match=f"{re.escape(expected[0])}.* mix positions by more than attention",
    ):
        self_attention(lens, item)
