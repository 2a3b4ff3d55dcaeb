"""Facts about model families: what is tested, what is refused by name, and how many positions there are."""

from typing import Any

SUPPORTED = (
    "albert", "bart", "bert", "clip", "deepseek_v3", "deepseek_v32", "distilbert", "electra", "gemma2", "gemma3",
    "gemma4", "gpt2", "gpt_neox", "gpt_oss", "identifiable_encoder", "llama", "marian", "mistral", "modernbert",
    "nllb-moe", "opt", "phi3", "qwen2", "qwen3", "roberta", "splinter", "t5", "vit", "whisper",
)  # fmt: skip
"""Families of the test matrix. Others are tried, and refused if a check at the first forward pass fails."""

# Positions start behind the padding index in RoBERTa's embeddings, so that many of them are never used.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text")


WORKS = f"tested families: {', '.join(SUPPORTED)}"


def position_limit(config: Any) -> int | None:
    """Return how many tokens the model's positions allow, or None when nothing limits them.

    Rotary models run past ``max_position_embeddings``, though not as trained; it is taken as their limit too.
    """
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit = getattr(config, "max_target_positions", None) or getattr(config, "max_position_embeddings", None)
    unused = (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0
    return limit - unused if limit is not None and limit > 0 else None
