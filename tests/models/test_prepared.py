"""Batches of recordings, pictures and boxes: every mask reaches attention, and weights are the family's own."""

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

import identilens as idl
from families.tiny import tiny_models
from families.trial import _runnable
from helpers.command import failing
from helpers.heads import seeded
from helpers.zoo import _LLAMA, _random
from identilens.errors import UnsupportedModelError
from identilens.models import Lens

IMAGE = 90
WAV2VEC2 = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": [16, 16], "conv_kernel": [4, 2], "conv_stride": [4, 2], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}  # fmt: skip
QWEN_VISION = {
    "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "mlp_ratio": 2,
}  # fmt: skip


def recordings():
    """A model of recordings, and two, of which the second is shorter."""
    torch.manual_seed(0)
    mask = (torch.arange(160) < torch.tensor([[160], [96]])).long()
    sound = torch.randn(2, 160, generator=seeded()) * mask
    model = _random(hf.Wav2Vec2Model(hf.Wav2Vec2Config(**WAV2VEC2)))
    return model, {"input_values": sound, "attention_mask": mask}


def test_weights_of_texts_with_pictures_are_those_the_family_reports():
    """Qwen2-VL, whose pictures are packed; other families are tried by their names."""
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = hf.Qwen2VLConfig(
        vision_config=QWEN_VISION, text_config={**_LLAMA, "rope_parameters": rope}, image_token_id=IMAGE,
        vision_start_token_id=91, vision_end_token_id=92,
    )  # fmt: skip
    tokens = torch.tensor([[7, 8, 91, *[IMAGE] * 4, 92, 9, 10]])
    batch = {
        "input_ids": tokens, "pixel_values": torch.randn(16, 3 * 2 * 4 * 4, generator=seeded()),
        "image_grid_thw": torch.tensor([[1, 4, 4]]), "mm_token_type_ids": (tokens == IMAGE).long(),
    }  # fmt: skip
    torch.manual_seed(0)
    model = _random(hf.Qwen2VLForConditionalGeneration(config))
    model.set_attn_implementation("eager")
    lens = Lens(model)
    with torch.no_grad():
        own = lens.body(**batch, output_attentions=True).attentions
    for index, text in enumerate(lens.capture(batch, weights=True)):
        for layer, reported in zip(text.layers[-len(own) :], own, strict=True):
            rows, keys = layer.weights.shape[-2:]
            assert_close(layer.weights, reported[index, :, :rows, :keys], atol=5e-5, rtol=0)


def test_a_padded_recording_is_the_recording_alone():
    model, batch = recordings()
    lens = Lens(model)
    _, together = lens.capture(batch, weights=True)
    alone = next(lens.capture({"input_values": batch["input_values"][1:, :96]}, weights=True))
    assert together.layers[0].weights.shape == (4, 12, 12)
    for one, other in zip(together.heads, alone.heads, strict=True):
        assert_close(one.weights, other.weights, atol=5e-5, rtol=0)
    table = idl.audit(lens, batch).table
    assert dict(table.select("text", "n_key").unique().iter_rows()) == {0: 20, 1: 12}


@pytest.mark.parametrize("positions", [8, 1])
def test_padding_that_cannot_be_cut_away_is_refused(monkeypatch, positions):
    model, batch = recordings()
    batch["attention_mask"][1] = torch.arange(160) < 160 - 8 * positions
    monkeypatch.setattr("identilens.models.inputs.cut_padding", lambda item, row: None)
    with pytest.raises(
        UnsupportedModelError, match=f"check 'padding is cut away' failed with {positions} "
    ):
        list(Lens(model).capture(batch))


def test_the_attention_of_a_head_on_top_is_captured_with_the_rest():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    }  # fmt: skip
    above = {f"decoder_{name}": number // 2 for name, number in sizes.items()}
    config = hf.VideoMAEConfig(image_size=32, num_frames=2, **sizes, **above)
    lens = Lens(hf.VideoMAEForPreTraining(config))
    batch = {
        "pixel_values": torch.randn(1, 2, 3, 32, 32),
        "bool_masked_pos": torch.tensor([[True, True, False, False]]),
    }
    [video] = lens.capture(batch, weights=True)
    assert [layer.site.name.split(".")[0] for layer in video.layers] == ["videomae"] * 2 + [
        "decoder"
    ]
    assert [layer.weights.shape for layer in video.layers] == [(4, 2, 2)] * 2 + [(2, 4, 4)]


def layers(model, inputs):
    lens = Lens(model)
    sites = lens.sites(lens.read(inputs)[0])
    return {site.name: (site.kind, site.layer) for site in sites}


@pytest.mark.parametrize(
    ("family", "kind"), [("paligemma", "encoder"), ("git", "decoder"), ("llava", "decoder")]
)
def test_layers_have_the_same_numbers_with_a_picture_and_without(family, kind):
    """Kinds and numbers of layers come from the modules, not from the input."""
    model = next(tiny_models(family))
    inputs = _runnable(model, [])
    text, picture = inputs["text"], inputs["text with picture"]
    alone, beside = layers(model, text), layers(model, picture)
    assert len(beside) > len(alone)
    assert {name: beside[name] for name in alone} == alone
    assert list(alone.values()) == [(kind, layer) for layer in range(len(alone))]
    towers = [beside[name] for name in beside.keys() - alone.keys()]
    assert {one for one, _ in towers} <= {"encoder", "cross"}
    assert len({*beside.values()}) == len(beside)


def test_what_cannot_be_read_or_used_is_told(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    bad = ["--image", tmp_path / "bad.png"]
    options = ["audit", "-m", tmp_path / "none", "-o", tmp_path / "out"]
    assert "cannot be read as an image" in failing(*options, *bad)
    assert "give exactly one of" in failing(*options, *bad, "--text", "a")
