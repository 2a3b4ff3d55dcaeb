"""Facts about model families: what is refused, and how many positions they have."""

import re
from typing import Any

from transformers import PreTrainedModel

from identilens.errors import UnsupportedModelError

# Positions start after the padding index in RoBERTa's embeddings; the positions before it are never used.
_OFFSET_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
    "data2vec-text",
)


_BY_LENGTH = re.compile("'(rope_type|type)': '(longrope'|[^']*dynamic)")


def refuse_sparse_blocks(model: PreTrainedModel) -> None:
    """Raise for a model that computes attention in sparse blocks on long texts, and switches it off on short ones.

    Raises:
        UnsupportedModelError: For BigBird and its relatives, as they are loaded by default.
    """
    if getattr(model.config, "attention_type", None) == "block_sparse":
        raise UnsupportedModelError(
            f"{type(model).__name__} has block-sparse attention, whose weights lie in bands and random blocks and are "
            'no map of queries and keys. Load it with attention_type="original_full": it computes full attention then, '
            "as it does on short texts."
        )


def has_positions_by_length(config: Any) -> bool:
    """Return whether the longest text of a batch sets the rotary positions of all (LongRoPE, dynamic scaling)."""
    return _BY_LENGTH.search(str(config.to_dict())) is not None


def position_limit(config: Any) -> int | None:
    """Return the largest number of tokens that the model's positions allow, or None if there is no limit.

    Rotary models can run beyond ``max_position_embeddings``, but were not trained for it, so it is their limit too.
    """
    config = config.get_text_config()
    limit = getattr(config, "max_target_positions", None) or getattr(
        config, "max_position_embeddings", None
    )
    unused = (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0
    return limit - unused if limit and limit > 0 else None
