"""Tiny random models of any model type of transformers, made from the names in its default configuration."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, ResNetConfig

VOCABULARY = 128
PARAMETERS = 60_000_000
"""Largest model that is tried."""

_CLASSES = 3
"""Classes of a type that are tried, the bare model first."""

_LAYERS = re.compile(r"(^|_)layers?$|^depth$|^num_blocks$")
_NO_LAYERS = re.compile(
    r"feat_extract|adapter|conv|tdnn|shared|dense|period|offset|predict|nextn|proj|head|select|_ff"
)
_WIDTH = re.compile(
    r"hidden|embed|embd|emb_dim|dim|d_model|d_ff|d_kv|d_inner|ffn|inner|intermediate|channels|proj|rank|head_size"
    r"|d_head|mlp|width|units|filters|size_per|num_pos_feats|pooler|feature_size|d_state|group_size"
)
_NO_WIDTH = re.compile(
    r"token|_id$|_index|vocab|max_|position_embeddings|num_position|image_embedding_size|image_size|patch_size|kernel"
    r"|stride|ratio|type|layers|act|mel"
)
_POSITIONS = re.compile(r"max_position|n_positions|max_target|n_ctx|max_2d|max_seq|max_len")
_TOKEN = re.compile(
    r"(token_ids?|token_index|_index|(^|_)(img|image|video|audio)_?(pad|token)\w*)$"
)
_MATCHED = re.compile(
    r"(^|[._])(w?[qk]|qkv?|query|key|query_key_value|c_attn|in_proj|\w*[qk]_\w*proj|[qk]_lin)([._]|$)",
    re.IGNORECASE,
)
"""Parameters that make queries and keys."""
_EXPERTS = re.compile(r"experts?$|num_experts|n_routed")
_CHOSEN = re.compile(r"per_tok|topk_group|moe_k$|top_k$|moe_topk$")
_DEPTHS = re.compile(r"depths|num_block|layers_per")
_FIXED = {
    "sliding_window": 4, "local_attention": 6, "attention_window": 4, "max_source_positions": 24, "n_group": 2,
    "num_expert_group": 2, "num_kv_shared_layers": 0, "index_kpool": 2,
    "attn_layer_period": 2, "attn_layer_offset": 1, "num_query_tokens": 4, "num_queries": 6, "index_topk": 4,
    "first_k_dense_replace": 1, "max_window_layers": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
}  # fmt: skip

_FILLED = {
    "attn_layer_indices": [1], "prediction_length": 4, "num_experts_per_tok": 2, "n_routed_experts": 8,
    "n_shared_experts": 1,
    "pad_token_id": 0, "mask_token_id": 101, "vocab_size": VOCABULARY, "image_token_id": 100, "image_token_index": 100,
    "vocabulary_map": {"<image>": 100},
}  # fmt: skip
"""What stands for a default that a model cannot be run with, or shows no attention."""
_DERIVED = ("layer_types", "mlp_layer_types", "transformers_version", "rope_parameters")
"""What a configuration makes of its other numbers."""


@dataclass
class Sizes:
    """How small a model is made.

    Attributes:
        divisor: Widths are divided by it.
        layers: Number of layers at most; more where the model has several kinds of layers.
        small_images: Images contain 4 x 4 patches; otherwise they have the default size.
        tokens: New ids of tokens beyond the small vocabulary, by old id.
    """

    divisor: int
    layers: int = 2
    small_images: bool = True
    tokens: dict[int, int] = field(default_factory=dict)

    def token(self, number: int) -> int:
        """Return a token's number in the small vocabulary; special ones stand at its end."""
        if number < VOCABULARY // 2:
            return number
        return self.tokens.setdefault(number, VOCABULARY - 1 - len(self.tokens))


LADDER = (
    Sizes(16),
    Sizes(8),
    Sizes(32),
    Sizes(16, small_images=False),
    Sizes(4),
    Sizes(4, small_images=False),
    Sizes(1),
)
"""Sizes in the order in which they are tried; the first that can be built and run is used."""


def sized(config: PreTrainedConfig, sizes: Sizes) -> PreTrainedConfig:
    """Return a configuration of the same type with smaller numbers."""
    if config.model_type == "timm_backbone":
        return _backbone(config)
    values, default = _values(config), _values(type(config)())
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    count = max([sizes.layers, *(list(kinds).index(kind) + 1 for kind in set(kinds))])
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, PreTrainedConfig):
            changes[name] = sized(value, sizes)
        elif (new := _changed(name, value, values, sizes, count)) is not None and new != value:
            changes[name] = new
        elif name not in _DERIVED and value != default.get(name):
            changes[name] = value
    rope = values.get("rope_parameters")
    if isinstance(rope, dict) and any(isinstance(part, dict) for part in rope.values()):
        changes["rope_parameters"] = rope
    elif isinstance(rope, dict) and "rope_type" in rope:
        changes["rope_parameters"] = {**rope, "mrope_section": _sections({**values, **changes})}
    width, heads = (
        {**values, **changes}.get(name) for name in ("hidden_size", "num_attention_heads")
    )
    head_width = any(name in values for name in ("head_dim", "v_head_dim", "qk_rope_head_dim"))
    if isinstance(width, int) and isinstance(heads, int) and width % heads and not head_width:
        heads = math.gcd(width, heads)
        heads //= 1 + width // heads % 2
        changes |= {
            name: heads for name in ("num_attention_heads", "num_key_value_heads") if name in values
        }
    width, heads = (
        {**values, **changes}.get(name) for name in ("hidden_size", "num_attention_heads")
    )
    if isinstance(width, int) and isinstance(heads, int):
        usual = {"head_dim": width // heads, "num_key_value_heads": heads}
        changes |= {
            name: number
            for name, number in usual.items()
            if name in values and values[name] is None
        }
    if kinds and set(values.get("layer_types") or ()) == {"linear_attention"}:
        changes["layer_types"] = ["linear_attention", "full_attention"]
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        changes["decoder_start_token_id"] = 0
    if "depths" in values and getattr(config, "out_features", None):
        changes["out_features"] = config.out_features
    if "use_timm_backbone" in values:
        changes["use_timm_backbone"] = False
    return type(config)(**changes)


def _values(config: PreTrainedConfig) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def _sections(values: dict[str, Any]) -> list[int]:
    """Return the numbers of rotary dimensions of a head for time, height and width."""
    width, heads = values.get("hidden_size", 32), values.get("num_attention_heads", 4)
    half = (
        (values.get("head_dim") or width // heads) // 2
        if isinstance(heads, int) and isinstance(width, int)
        else 0
    )
    return [half - 2 * (half // 3), half // 3, half // 3]


def _backbone(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a small ResNet with as many outputs, for families that encode pictures with timm."""
    stages = getattr(config, "out_indices", None) or [4]
    features = [f"stage{place}" for place in range(5 - len(stages), 5)]
    sizes: dict[str, Any] = {
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
    }
    return ResNetConfig(**sizes, out_features=features)  # pyright: ignore[reportCallIssue]


def _changed(name: str, value: Any, values: dict[str, Any], sizes: Sizes, count: int) -> Any:
    if value is None:
        return _FILLED.get(name)
    if isinstance(value, bool):
        return None
    if name == "image_size":
        return _image_size(value, values.get("patch_size"), sizes)
    if isinstance(value, list | tuple) and value:
        depth = next(
            (
                values[key]
                for key in ("num_hidden_layers", "n_layer", "num_layers")
                if key in values
            ),
            None,
        )
        value = value[:count] if len(value) == depth and "depths" not in values else value
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            many = [_number(name, item, sizes, count) for item in value]
            return type(value)(
                item if new is None else new for item, new in zip(value, many, strict=True)
            )
        return value if name != "layer_types" else None
    return _number(name, value, sizes, count) if isinstance(value, int) else None


def _number(name: str, value: int, sizes: Sizes, count: int) -> int | None:
    if name in _FIXED:
        return min(value, _FIXED[name]) if value else None
    if "vocab" in name:
        return min(value, VOCABULARY)
    if _TOKEN.search(name):
        return sizes.token(value)
    for pattern, limit in ((_CHOSEN, 2), (_EXPERTS, 8), (_POSITIONS, 128), (_DEPTHS, 2)):
        if pattern.search(name):
            return min(value, limit)
    if _LAYERS.search(name) and not _NO_LAYERS.search(name):
        return min(value, count)
    if _WIDTH.search(name) and not _NO_WIDTH.search(name) and value >= 32:
        return (
            value // sizes.divisor
            if value % sizes.divisor == 0
            else max(8, value // sizes.divisor // 8 * 8)
        )
    return None


def _image_size(value: Any, patch: Any, sizes: Sizes) -> Any:
    if not sizes.small_images:
        return None
    if isinstance(value, list | tuple):
        return type(value)(_image_size(side, patch, sizes) for side in value)
    return 4 * patch if isinstance(patch, int) else max(32, value // 7)


def model_types() -> list[str]:
    """Return the model types of the installed transformers, those of parts of other models included."""
    return sorted(CONFIG_MAPPING.keys())


def classes(config: PreTrainedConfig) -> list[type[PreTrainedModel]]:
    """Return the classes that a configuration has in transformers' Auto classes, the bare model first."""
    models: list[type[PreTrainedModel]] = []
    for name in _mappings():
        mapping = getattr(transformers, name)
        if type(config) in mapping:
            listed = mapping[type(config)]
            models += listed if isinstance(listed, tuple) else [listed]
    return list(dict.fromkeys(models))


@cache
def _mappings() -> list[str]:
    return sorted(
        (name for name in dir(transformers) if re.fullmatch(r"MODEL_(FOR_\w+_)?MAPPING", name)),
        key=_order,
    )


def _order(mapping: str) -> tuple[int, str]:
    first = (
        "MODEL_MAPPING",
        "MODEL_FOR_PRETRAINING_MAPPING",
        "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    )
    return first.index(mapping) if mapping in first else len(first), mapping


def built(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Return a model with random weights that make its attention far from uniform, in evaluation mode.

    Raises:
        ValueError: If it is too large to be tried.
    """
    with torch.device("meta"):
        count = sum(one.numel() for one in kind(config).parameters())
    if count > PARAMETERS:
        raise ValueError(f"{count:,} parameters are too many to be tried")
    torch.manual_seed(0)
    model = kind(config)
    _randomise(model)
    return model.eval()


@torch.no_grad()
def _randomise(model: nn.Module) -> None:
    for name, one in model.named_parameters():
        if one.ndim >= 2 and one.numel():
            sharper = 2.0 if _MATCHED.search(name) else 1.0
            one.normal_(0, 1.4 * sharper / math.sqrt(one[0].numel()))
        elif name.endswith("bias"):
            one.normal_(0, 0.1)


def is_part(family: str) -> bool:
    """Return whether a type has no class in transformers' Auto classes, for it is a part of other models."""
    return not classes(CONFIG_MAPPING[family]())


def tiny_models(family: str) -> Iterator[PreTrainedModel]:
    """Yield small models of a type, from the smallest, as far as they can be built.

    Raises:
        ValueError: With the reason of the first failure, where none can.
    """
    default = CONFIG_MAPPING[family]()
    kinds = classes(default)[:_CLASSES]
    failures: list[Exception] = []
    tries = [
        (kind, sizes)
        for place, kind in enumerate(kinds)
        for sizes in (LADDER[:2] if place else LADDER)
    ]
    for kind, sizes in tries:
        try:
            model = built(kind, sized(default, replace(sizes, tokens={})))
        except Exception as error:
            failures.append(error)
            continue
        yield model
    if len(failures) == len(tries):
        raise ValueError(str(failures[0])) from failures[0]
