"""Tiny random models of every tested family, with inputs: the rows of the test matrix."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from helpers.heads import seeded
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.modeling import IdentifiableEncoderModel
from identilens.models import Lens

VOCAB = 96
_COMMON = {
    "vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.1,
}  # fmt: skip
_LLAMA = {
    **_COMMON,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_UNGROUPED = {name: size for name, size in _LLAMA.items() if name != "num_key_value_heads"}
_BERT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
_SEQ2SEQ = {
    **_COMMON,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def _gpt_oss():
    config = hf.GptOssConfig(
        **_LLAMA,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=4,
        rope_parameters=None,
    )
    return hf.GptOssForCausalLM(config)


_DEEPSEEK = {
    **_LLAMA, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 12, "kv_lora_rank": 16,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
}  # fmt: skip


def _deepseek_v32():
    config = hf.DeepseekV32Config(**_DEEPSEEK, index_topk=4, index_n_heads=2, index_head_dim=8)
    return hf.DeepseekV32ForCausalLM(config)


_GEMMA = {
    **_LLAMA,
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
_OPT = {
    **_COMMON,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 32,
}
_MODERN = {
    **_BERT, "local_attention": 6, "global_attn_every_n_layers": 2,
    "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_DISTIL = {
    "vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
_GPT2 = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 1,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
_WHISPER = {
    **{key: value for key, value in _SEQ2SEQ.items() if key not in ("max_position_embeddings", "forced_eos_token_id")},
    "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 64,
    "suppress_tokens": [], "begin_suppress_tokens": [],
}  # fmt: skip
_VIT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 12, "patch_size": 4,
}  # fmt: skip

_IDENTIFIABLE = {
    "vocab_size": VOCAB, "d_k": 3, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip

# 47 types make 97 tokens, enough for every id of the others.
_DYCK = {
    "bracket_types": 47, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "positions": "linear",
}  # fmt: skip

BUILDERS: dict[str, Callable[[], Any]] = {
    "dyck": lambda: DyckForCausalLM(DyckConfig(**_DYCK)),
    "identifiable_con": lambda: IdentifiableEncoderModel(
        IdentifiableEncoderConfig(**_IDENTIFIABLE, heads="concat")
    ),
    "identifiable_add": lambda: IdentifiableEncoderModel(
        IdentifiableEncoderConfig(**_IDENTIFIABLE, heads="add")
    ),
    "bert": lambda: hf.BertModel(hf.BertConfig(**_BERT)),
    "bert_decoder": lambda: hf.BertLMHeadModel(hf.BertConfig(**_BERT, is_decoder=True)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**_BERT, pad_token_id=1)),
    "distilbert": lambda: hf.DistilBertModel(hf.DistilBertConfig(**_DISTIL)),
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**_BERT, embedding_size=16)),
    "electra": lambda: hf.ElectraModel(hf.ElectraConfig(**_BERT, embedding_size=16)),
    "modernbert": lambda: hf.ModernBertModel(hf.ModernBertConfig(**_MODERN)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_GPT2)),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_UNGROUPED)),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**_OPT)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_LLAMA)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_LLAMA, sliding_window=4)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_LLAMA)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_LLAMA, head_dim=8)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_GEMMA, attn_logit_softcapping=2.0)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**_GEMMA)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**_LLAMA)),
    "gpt_oss": _gpt_oss,
    "deepseek_v3": lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**_DEEPSEEK)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_T5)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_SEQ2SEQ)),
    "marian": lambda: hf.MarianMTModel(hf.MarianConfig(**_SEQ2SEQ)),
    "whisper": lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig(**_WHISPER)),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**_VIT)),
    "clip": lambda: hf.CLIPTextModel(hf.CLIPTextConfig(**_UNGROUPED)),
}

MORE: dict[str, Callable[[], Any]] = {
    "deepseek_v32": _deepseek_v32,
    "gemma4": lambda: hf.Gemma4ForCausalLM(
        hf.Gemma4TextConfig(
            **_GEMMA, global_head_dim=8, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=0
        )
    ),
    "nllb_moe": lambda: hf.NllbMoeModel(
        hf.NllbMoeConfig(**_SEQ2SEQ, num_experts=2, encoder_sparse_step=0, decoder_sparse_step=0)
    ),
    "splinter": lambda: hf.SplinterModel(hf.SplinterConfig(**_BERT, question_token_id=4)),
}
"""Families of other masks, on which capture is tested, and not everything that builds on it."""
ALONE = ("deepseek_v32",)
"""Families that run one text at a time."""


_HYBRID = {**_LLAMA, "num_hidden_layers": 4}
_JAMBA = {
    "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
    "mamba_d_conv": 2, "use_mamba_kernels": False,
}  # fmt: skip
_ZAMBA = {
    "num_key_value_heads": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
    "n_mamba_heads": 2, "use_mamba_kernels": False, "layers_block_type": ["mamba", "hybrid"] * 2,
}  # fmt: skip
_GRANITE = {
    "layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4,
    "mamba_n_groups": 1, "num_local_experts": 0,
}  # fmt: skip

HYBRIDS: dict[str, Callable[[], Any]] = {
    "jamba": lambda: hf.JambaForCausalLM(hf.JambaConfig(**_HYBRID, **_JAMBA)),
    "lfm2": lambda: hf.Lfm2ForCausalLM(
        hf.Lfm2Config(**_HYBRID, layer_types=["conv", "full_attention"] * 2, block_multiple_of=8)
    ),
    "granitemoehybrid": lambda: hf.GraniteMoeHybridForCausalLM(
        hf.GraniteMoeHybridConfig(**_HYBRID, **_GRANITE)
    ),
    "zamba": lambda: hf.ZambaForCausalLM(hf.ZambaConfig(**(_HYBRID | _ZAMBA))),
}
"""Models of four layers, of which 1 and 3 hold attention."""


def _random(model):
    """Give a model weights that make its attention far from uniform, and evaluation mode."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 or "sinks" in name:
                parameter.normal_(0, 0.25)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
    return model.eval()


def gemma():
    """A Gemma of the first version, whose norms shift their weights by 1."""
    torch.manual_seed(0)
    return hf.GemmaForCausalLM(hf.GemmaConfig(**_LLAMA, head_dim=8)).eval()


def granite_swa():
    """Its attention scales the output by a sink, and not the weights."""
    torch.manual_seed(0)
    return _random(hf.GraniteSWAForCausalLM(hf.GraniteSWAConfig(**_LLAMA)))


def swin(version=""):
    """Its attention batch holds windows: 4 an image."""
    torch.manual_seed(0)
    config = getattr(hf, f"Swin{version}Config")(
        image_size=16, patch_size=2, window_size=4, embed_dim=16, depths=[1], num_heads=[2]
    )
    return _random(getattr(hf, f"Swin{version}Model")(config))


def build(family, seed=0):
    """A tiny random model in evaluation mode whose attention is far from uniform."""
    torch.manual_seed(seed)
    return _random((BUILDERS | MORE | HYBRIDS)[family]())


def ids(length, seed=0):
    """Token ids without any special meaning to any family."""
    return torch.randint(5, VOCAB, (length,), generator=seeded(seed)).tolist()


def example(family, seed=0):
    """Inputs for one family: token ids, or a batch of features."""
    generator = seeded(seed)
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 12, 12, generator=generator)}
    if family == "whisper":
        features = torch.randn(2, 8, 24, generator=generator)
        return {
            "input_features": features,
            "decoder_input_ids": torch.tensor([ids(7, seed), ids(7, seed + 1)]),
        }
    return [ids(9, seed), ids(6, seed + 1), ids(13, seed + 2)]


def tiny(model):
    """A lens of a small model in double precision, its matrices drawn anew, so that attention is far from uniform."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.5)
    return Lens(model, name="tiny")


def tiny_encoder(layers=1):
    """An encoder of two heads of four numbers in each layer."""
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=96,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
    )
    return tiny(hf.BertModel(config))


def tiny_decoder(layers):
    """A decoder of two heads of four numbers in each layer."""
    torch.manual_seed(0)
    config = hf.GPT2Config(vocab_size=96, n_embd=8, n_layer=layers, n_head=2)
    return tiny(hf.GPT2LMHeadModel(config))


def classifier(family="bert", head="SequenceClassification", labels=3):
    """A tiny random classifier of three classes, or with another head, whose decisions are far from even."""
    config = build(family).config
    config.num_labels = labels
    model = getattr(hf, f"AutoModelFor{head}").from_config(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    return Lens(model.double().eval())
