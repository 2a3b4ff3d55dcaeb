"""Models that read texts beside pictures: kinds and numbers of layers come from the modules, not from the input."""

import pytest
import torch
import transformers as hf

from families.tiny import tiny_models
from families.trial import _runnable
from identilens.models import Lens

PICTURE = 60
"""Token in place of a picture."""


def gemma():
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    text = hf.Gemma3TextConfig(
        **small, vocab_size=64, num_hidden_layers=2, num_key_value_heads=2, head_dim=8
    )
    vision = hf.SiglipVisionConfig(**small, num_hidden_layers=3, image_size=16, patch_size=4)
    config = hf.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=PICTURE
    )
    ids = torch.tensor([[5, 61, *[PICTURE] * 4, 62, 7, 8, 9]])
    beside = {
        "input_ids": ids,
        "token_type_ids": (ids == PICTURE).long(),
        "pixel_values": torch.rand(1, 3, 16, 16),
    }
    return hf.Gemma3ForConditionalGeneration(config).eval(), [[5, 7, 8, 9]], beside


def drawn(family):
    model = next(tiny_models(family))
    inputs = _runnable(model, [])
    return model, inputs["text"], inputs["text with picture"]


def layers(model, inputs):
    lens = Lens(model)
    sites = lens.sites(lens.read(inputs)[0])
    return {site.name: (site.kind, site.layer) for site in sites}


@pytest.mark.parametrize(
    ("family", "kind"), [("gemma3", "decoder"), ("paligemma", "encoder"), ("git", "decoder"), ("llava", "decoder")]
)  # fmt: skip
def test_layers_have_the_same_numbers_with_a_picture_and_without(family, kind):
    model, text, picture = gemma() if family == "gemma3" else drawn(family)
    alone, beside = layers(model, text), layers(model, picture)
    assert len(beside) > len(alone)
    assert {name: beside[name] for name in alone} == alone
    assert list(alone.values()) == [(kind, layer) for layer in range(len(alone))]
    towers = [beside[name] for name in beside.keys() - alone.keys()]
    assert {one for one, _ in towers} <= {"encoder", "cross"}
    assert len({*beside.values()}) == len(beside)
