"""Random inputs of every kind that a model may take: texts, pictures, recordings, and texts with pictures in them."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from families.tiny import VOCABULARY

LENGTHS = (9, 6, 13)
"""Tokens of the random texts, which make a ragged batch."""
_PICTURES = 2


def candidates(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    """Yield what may be an input of a model, with its kind: several shapes of one kind where names do not say which."""
    names = inspect.signature(model.forward).parameters
    if "input_ids" in names:
        yield "text", [_ids(model, length, seed) for seed, length in enumerate(LENGTHS)]
    for kind, name, shapes in (
        ("picture", "pixel_values", _picture_shapes(model)), ("video", "pixel_values_videos", _video_shapes(model)),
        ("recording", "input_features", _feature_shapes(model)), ("recording", "input_values", _sound_shapes(model)),
    ):  # fmt: skip
        if name not in names:
            continue
        for shape in shapes:
            batch = {name: _drawn(*shape)}
            if "decoder_input_ids" in names:
                batch["decoder_input_ids"] = _rows(model, shape[0])
            yield kind, batch
            if "input_ids" in names:
                with_text = {
                    "input_ids": _rows(model, 1),
                    **{key: value[:1] for key, value in batch.items()},
                }
                yield f"text with {kind}", with_text
    if "bbox" in names:
        corner = torch.randint(0, 40, (2, 7, 2), generator=torch.Generator().manual_seed(0))
        yield (
            "text with boxes",
            {"input_ids": _rows(model, 2), "bbox": torch.cat([corner, corner + 9], -1)},
        )
    if "grid_thw" in names:
        name = "pixel_values" if "pixel_values" in names else "hidden_states"
        yield from (
            ("picture", {name: pixels, "grid_thw": grid}) for pixels, grid in _gridded(model.config)
        )
    if "spatial_shapes" in names:
        yield from _patches(model, "input_ids" in names)
    if "past_values" in names:
        for shape in _series_shapes(model):
            yield (
                "time series",
                {"past_values": _drawn(*shape)} | _series_features(model, names, shape[1]),
            )
    if "pixel_values" in names and "input_ids" in names:
        yield from _with_picture_tokens(model)


def _with_picture_tokens(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    """Yield a text with a picture whose positions are marked by a token, as many as the model makes of a picture."""
    token, seen = _attribute(model.config, "image_token_id", "image_token_index"), _see(model)
    if token is None or seen is None:
        return
    for given in _picture_inputs(model):
        try:
            with torch.no_grad():
                features = seen(**given)
        except Exception:
            continue
        features = getattr(features, "pooler_output", features)
        parts = features if isinstance(features, list | tuple) else [features]
        count = sum(part.numel() // part.shape[-1] for part in parts)
        before, after = _ids(model, 4, 1), _ids(model, 3, 2)
        ids = torch.tensor([[*before, *[token] * count, *after]])
        batch = {"input_ids": ids, **given}
        if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
            batch["mm_token_type_ids"] = (ids == token).long()
        yield "text with picture", batch


def _patches(model: PreTrainedModel, with_text: bool) -> Iterator[tuple[str, Any]]:
    """Yield pictures as patches in a row, with how many of them there are in height and width."""
    vision = getattr(model.config, "vision_config", model.config)
    patches = {
        "pixel_values": _drawn(_PICTURES, 6, 3 * vision.patch_size**2),
        "pixel_attention_mask": torch.ones(_PICTURES, 6, dtype=torch.long),
        "spatial_shapes": torch.tensor([[2, 3]] * _PICTURES),
    }
    if with_text:
        yield "text with picture", {"input_ids": _rows(model, _PICTURES), **patches}
    else:
        yield "picture", patches


def _see(model: PreTrainedModel) -> Callable[..., Any] | None:
    """Return the method that makes features of pictures, where a model has one."""
    return getattr(model, "get_image_features", None)


def _picture_inputs(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    vision = getattr(model.config, "vision_config", model.config)
    names = inspect.signature(_see(model) or model.forward).parameters
    if "image_grid_thw" in names:
        yield from (
            {"pixel_values": pixels, "image_grid_thw": grid} for pixels, grid in _gridded(vision)
        )
        return
    for shape in _picture_shapes(model):
        pixels = _drawn(1, *shape[1:])
        for sizes in ({}, {"image_sizes": torch.tensor([list(shape[-2:])])}):
            if not sizes or "image_sizes" in names:
                yield {"pixel_values": pixels, **sizes}
                yield {"pixel_values": pixels[None], **sizes}


def _gridded(vision: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the patches of one picture as rows, and their numbers in time, height and width."""
    patch, merge = getattr(vision, "patch_size", 4), getattr(vision, "spatial_merge_size", 2)
    width = (_attribute(vision, "in_channels", "in_chans", "num_channels") or 3) * patch * patch
    for frames in dict.fromkeys((getattr(vision, "temporal_patch_size", 1), 1)):
        yield _drawn(4 * merge * merge, width * frames), torch.tensor([[1, 2 * merge, 2 * merge]])


def _ids(model: PreTrainedModel, length: int, seed: int) -> list[int]:
    """Return ids of ordinary tokens."""
    special = {
        value
        for name, value in _numbers(model.config)
        if "token" in name or name.endswith(("_id", "_index"))
    }
    plain = [number for number in range(3, VOCABULARY // 2) if number not in special]
    drawn = torch.randint(len(plain), (length,), generator=torch.Generator().manual_seed(seed))
    return [plain[place] for place in drawn.tolist()]


def _numbers(config: Any) -> Iterator[tuple[str, int]]:
    for name, value in vars(config).items():
        if isinstance(value, int):
            yield name, value
        elif hasattr(value, "to_dict"):
            yield from _numbers(value)


def _rows(model: PreTrainedModel, count: int) -> Tensor:
    return torch.tensor([_ids(model, 7, seed) for seed in range(count)])


def _picture_shapes(model: PreTrainedModel) -> list[tuple[int, ...]]:
    size = _attribute(model.config, "image_size") or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = _attribute(model.config, "num_channels", "in_channels", "in_chans") or 3
    frames = _attribute(model.config, "num_frames") or 2
    channels = channels if isinstance(channels, int) else 3
    sides = dict.fromkeys([(height, width), (64, 64), (224, 224)])
    flat = [(_PICTURES, channels, *side) for side in sides]
    return [
        *flat,
        (_PICTURES, frames, channels, height, width),
        (_PICTURES, channels, frames, height, width),
    ]


def _video_shapes(model: PreTrainedModel) -> list[tuple[int, ...]]:
    size, frames = (
        _attribute(model.config, "image_size") or 64,
        _attribute(model.config, "num_frames") or 4,
    )
    side = size if isinstance(size, int) else size[0]
    return [(_PICTURES, frames, 3, side, side)]


def _feature_shapes(model: PreTrainedModel) -> list[tuple[int, ...]]:
    mels = (
        _attribute(
            model.config, "num_mel_bins", "feature_size", "input_feat_per_channel", "mel_bins"
        )
        or 80
    )
    places = 2 * (_attribute(model.config, "max_source_positions") or 24)
    return [(2, mels, places), (2, places, mels), (2, 64, 2 * mels), (2, 1, 1001, 64)]


def _sound_shapes(model: PreTrainedModel) -> list[tuple[int, ...]]:
    places = _attribute(model.config, "max_length")
    mels = _attribute(model.config, "num_mel_bins")
    spectrum = [(2, places, mels)] if isinstance(places, int) and isinstance(mels, int) else []
    return [*spectrum, (2, 4000), (2, 1, 4000)]


def _series_shapes(model: PreTrainedModel) -> list[tuple[int, ...]]:
    config = model.config
    length = (getattr(config, "context_length", None) or 32) + max(
        getattr(config, "lags_sequence", None) or [0]
    )
    return [(2, length), (2, length, getattr(config, "num_input_channels", 1))]


def _series_features(model: PreTrainedModel, names: Any, length: int) -> dict[str, Tensor]:
    """Return the other inputs of a time series: no value is missing, and time features are zero."""
    config, features = model.config, getattr(model.config, "num_time_features", 0)
    ahead = getattr(config, "prediction_length", None) or 4
    beside = {
        "past_time_features": torch.zeros(2, length, features), "past_observed_mask": torch.ones(2, length),
        "future_values": _drawn(2, ahead), "future_time_features": torch.zeros(2, ahead, features),
    }  # fmt: skip
    return {
        name: tensor
        for name, tensor in beside.items()
        if name in names and "lags_sequence" in vars(config)
    }


def _attribute(config: Any, *names: str) -> Any:
    """Return the first attribute of the names that a configuration, or one in it, has."""
    for name in names:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    for part in (
        "vision_config",
        "encoder_config",
        "audio_config",
        "backbone_config",
        "text_config",
        "qformer_config",
    ):
        inner = getattr(config, part, None)
        if hasattr(inner, "to_dict") and (value := _attribute(inner, *names)) is not None:
            return value
    return None


def _drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
