"""Tiny random models of families that compute attention by themselves, with inputs."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from helpers.zoo import _BERT, _GPT2, _SEQ2SEQ, _VIT, VOCAB, _random, example

_SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_BLOOM = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}
_DEBERTA = {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_MPT = {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
_NEO = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
}  # fmt: skip
_FSMT = {
    key: value
    for key, value in _SEQ2SEQ.items()
    if key not in ("vocab_size", "pad_token_id", "bos_token_id")
}
_XLM = {
    "vocab_size": VOCAB, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
_LAYOUT = {
    "coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 64, "visual_embed": False,
}  # fmt: skip
_SQUEEZE = {
    "embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1,
    "intermediate_groups": 2, "output_groups": 2,
}  # fmt: skip
_SWIN = {
    "image_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [2], "num_heads": [2],
}  # fmt: skip
_SAM = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 2,
    "window_size": 4,
}  # fmt: skip
_WAV = {
    **_SMALL, "intermediate_size": 48, "conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (4, 4),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip

ENCODERS: dict[str, Callable[[], Any]] = {
    "deberta": lambda: hf.DebertaModel(hf.DebertaConfig(**_DEBERTA)),
    "deberta_v2": lambda: hf.DebertaV2Model(hf.DebertaV2Config(**_DEBERTA, position_buckets=8)),
    "flaubert": lambda: hf.FlaubertModel(hf.FlaubertConfig(**_XLM)),
    "funnel": lambda: hf.FunnelBaseModel(
        hf.FunnelConfig(
            vocab_size=VOCAB, d_model=32, block_sizes=[2], n_head=4, d_head=8, d_inner=48
        )
    ),
    "layoutlmv3": lambda: hf.LayoutLMv3Model(hf.LayoutLMv3Config(**_BERT, **_LAYOUT)),
    "luke": lambda: hf.LukeModel(hf.LukeConfig(**_BERT, entity_vocab_size=10, entity_emb_size=8)),
    "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(**_BERT)),
    "roformer": lambda: hf.RoFormerModel(hf.RoFormerConfig(**_BERT, embedding_size=16)),
    "squeezebert": lambda: hf.SqueezeBertModel(hf.SqueezeBertConfig(**_BERT, **_SQUEEZE)),
    "xlm": lambda: hf.XLMModel(hf.XLMConfig(**_XLM)),
}
DECODERS: dict[str, Callable[[], Any]] = {
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**_BLOOM)),
    "codegen": lambda: hf.CodeGenForCausalLM(hf.CodeGenConfig(**_GPT2, rotary_dim=4)),
    "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**_SMALL)),
    "falcon_alibi": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(**_SMALL, alibi=True, multi_query=False)
    ),
    "falcon_groups": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(**_SMALL, num_kv_heads=2, new_decoder_architecture=True)
    ),
    "fsmt": lambda: hf.FSMTModel(
        hf.FSMTConfig(
            **_FSMT, langs=["en", "de"], src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, pad_token_id=0
        )
    ),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(hf.GPTNeoConfig(**_NEO)),
    "gptj": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**_GPT2, rotary_dim=4)),
    "mpt": lambda: hf.MptForCausalLM(hf.MptConfig(**_MPT)),
    "openai-gpt": lambda: hf.OpenAIGPTModel(
        hf.OpenAIGPTConfig(**{key: value for key, value in _GPT2.items() if key != "bos_token_id"})
    ),
    "xglm": lambda: hf.XGLMModel(
        hf.XGLMConfig(vocab_size=VOCAB, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48)
    ),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "blip": lambda: hf.BlipVisionModel(hf.BlipVisionConfig(**_VIT)),
    "sam": lambda: hf.SamVisionModel(
        hf.SamVisionConfig(**_SAM, global_attn_indexes=[1], mlp_dim=48, output_channels=8)
    ),
    "siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**_VIT)),
    "swinv2": lambda: hf.Swinv2Model(hf.Swinv2Config(**_SWIN)),
    "timesformer": lambda: hf.TimesformerModel(hf.TimesformerConfig(**_VIT, num_frames=2)),
    "vitdet": lambda: hf.VitDetModel(
        hf.VitDetConfig(**_SAM, window_block_indices=[0], use_relative_position_embeddings=True)
    ),
    "wavlm": lambda: hf.WavLMModel(hf.WavLMConfig(**_WAV)),
}
FAMILIES = ENCODERS | DECODERS | OTHERS


def build_own(family):
    """A tiny random model in evaluation mode whose attention is far from uniform."""
    torch.manual_seed(0)
    return _random(FAMILIES[family]())


def example_own(family):
    """Inputs for one family: token ids of several lengths, or a batch of features."""
    if family not in OTHERS:
        return example("bert")
    generator = torch.Generator().manual_seed(0)
    if family == "wavlm":
        return {"input_values": torch.randn(2, 200, generator=generator)}
    size = 16 if family in ("sam", "swinv2", "vitdet") else 12
    shape = (2, 2, 3, size, size) if family == "timesformer" else (2, 3, size, size)
    return {"pixel_values": torch.randn(shape, generator=generator)}
