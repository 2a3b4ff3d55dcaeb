"""Tiny models that read recordings, pictures or boxes, each with a batch as a processor prepares it."""

import torch
import transformers as hf

from helpers.zoo import _BERT, _LLAMA, _VIT, _random, ids

IMAGE = 90
_WAV2VEC2 = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": [16, 16], "conv_kernel": [4, 2], "conv_stride": [4, 2], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}  # fmt: skip
_QWEN = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
_QWEN_VISION = {
    "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "mlp_ratio": 2,
}  # fmt: skip


def _drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _mask(length, second):
    """Two texts, the second shorter."""
    return (torch.arange(length) < torch.tensor([[length], [second]])).long()


def _wav2vec2():
    mask = _mask(160, 96)
    model = hf.Wav2Vec2Model(hf.Wav2Vec2Config(**_WAV2VEC2))
    return model, {"input_values": _drawn(2, 160) * mask, "attention_mask": mask}


def _layoutlm():
    corner = torch.randint(0, 30, (2, 11, 2), generator=torch.Generator().manual_seed(0))
    batch = {
        "input_ids": torch.tensor([ids(11), ids(11, 1)]), "bbox": torch.cat([corner, corner + 5], -1),
        "attention_mask": _mask(11, 7),
    }  # fmt: skip
    return hf.LayoutLMModel(hf.LayoutLMConfig(**_BERT, max_2d_position_embeddings=64)), batch


def _llava():
    vision, text = hf.CLIPVisionConfig(**_VIT), hf.LlamaConfig(**_LLAMA)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    tokens = torch.tensor([[7, 8, *[IMAGE] * 9, 9, 10]])
    return hf.LlavaForConditionalGeneration(config), {
        "input_ids": tokens,
        "pixel_values": _drawn(1, 3, 12, 12),
    }


def _idefics3():
    config = hf.Idefics3Config(
        vision_config=dict(_VIT),
        text_config=hf.LlamaConfig(**_LLAMA),
        image_token_id=IMAGE,
        scale_factor=3,
    )
    batch = {
        "input_ids": torch.tensor([[7, 8, 9, IMAGE, 10, 11]]), "pixel_values": _drawn(1, 1, 3, 12, 12),
        "pixel_attention_mask": torch.ones(1, 1, 12, 12).long(),
    }  # fmt: skip
    return hf.Idefics3ForConditionalGeneration(config), batch


def _qwen2_vl():
    config = hf.Qwen2VLConfig(
        vision_config=_QWEN_VISION, text_config={**_LLAMA, **_QWEN}, image_token_id=IMAGE, vision_start_token_id=91,
        vision_end_token_id=92,
    )  # fmt: skip
    tokens = torch.tensor([[7, 8, 91, *[IMAGE] * 4, 92, 9, 10]])
    batch = {
        "input_ids": tokens, "pixel_values": _drawn(16, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (tokens == IMAGE).long(),
    }  # fmt: skip
    return hf.Qwen2VLForConditionalGeneration(config), batch


PREPARED = {
    "wav2vec2": _wav2vec2, "layoutlm": _layoutlm, "llava": _llava, "idefics3": _idefics3, "qwen2_vl": _qwen2_vl,
}  # fmt: skip


def prepared(family):
    """A model whose attention is far from uniform, and a batch for it."""
    torch.manual_seed(0)
    model, batch = PREPARED[family]()
    return _random(model), batch
