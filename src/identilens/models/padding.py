"""Which inputs of a model have an entry for each token, and the padding that their masks mark."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from identilens.errors import InputError

_PER_TOKEN = (
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "bbox",
    "mm_token_type_ids",
    "cross_attention_mask",
    "image_attention_mask",
    "xpath_tags_seq",
    "xpath_subs_seq",
)
SEQUENCES = ("input_ids", "inputs_embeds")
"""Inputs that are a sequence of tokens: their numbers, or their embeddings."""
COUNTED = ("input_ids", "decoder_input_ids", "grid_thw")
"""Inputs with one row for every text or picture; other inputs may have other numbers of rows."""
_MASKED = {
    "attention_mask": (*_PER_TOKEN, "input_values", "input_features"),
    "decoder_attention_mask": tuple(f"decoder_{name}" for name in _PER_TOKEN),
    "pixel_attention_mask": ("pixel_values", "pixel_attention_mask"),
}
"""Inputs whose padding each mask marks, if the mask has an entry for every position."""

_CHANNELS = ("pixel_values", "pixel_attention_mask", "input_features", "input_values")
"""Inputs with axes of pictures and spectrograms, of which one may be as long as a text."""


def sequences_of(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yield each sequence of tokens, "encoder" or "decoder", and the input that has it."""
    for kind, side in (("encoder", ""), ("decoder", "decoder_")):
        known = [f"{side}{name}" for name in SEQUENCES if f"{side}{name}" in tensors]
        for name in known[:1]:
            yield kind, name


def beside(name: str, other: str) -> str:
    """Return the name of another input of the same sequence."""
    return f"decoder_{other}" if name.startswith("decoder_") else other


def is_per_token(name: str) -> bool:
    """Return whether an input has a row for every token, so that it is cut and padded like the tokens."""
    return name.removeprefix("decoder_") in _PER_TOKEN


def cut_padding(item: dict[str, Tensor], row: int) -> None:
    """Remove the padding that the masks of one text mark; masks that mark no padding are passed on to the model."""
    for mask_name, names in _MASKED.items():
        mask = item.get(mask_name)
        if mask is None or (mask.ndim > 1 and mask_name == "pixel_attention_mask"):
            continue
        real = mask.bool()
        binary = mask.ndim == 1 and torch.equal(mask, real.to(mask.dtype))
        if not binary or real.unique_consecutive().sum() > 1:
            raise InputError(
                f"{mask_name} of text {row}: expected 2 axes (text, position), with 1 for the text's own positions, "
                "without a gap, and 0 for padding before or after them. Leave out masks between positions. Cut tokens "
                "out yourself: without them later ones have other positions."
            )
        cut = [
            name
            for name in names
            if name in item
            and name != mask_name
            and len(item[name]) == len(mask)
            # The first axis of pictures and spectrograms with channels first is not an axis of positions.
            and (is_per_token(name) or item[name].ndim <= 2)
        ]
        for name in cut:
            item[name] = item[name][real]
        unknown = [
            name
            for name in sorted({*item} - {*cut, mask_name, *_CHANNELS})
            if not is_per_token(name) and len(mask) in item[name].shape
        ]
        if unknown and not real.all():
            raise InputError(
                f"{', '.join(unknown)} of text {row} has {len(mask)} entries, as many as the padded text, and it is "
                "not known whether they belong to its tokens. Give texts without padding, one at a time."
            )
        if cut:
            item[mask_name] = mask[real]
        # Without a mask, positions that begin anew separate documents that are packed into one row.
        if (
            any(name.endswith(SEQUENCES) for name in cut)
            and beside(mask_name, "position_ids") not in item
        ):
            del item[mask_name]
