"""Texts of one length, as R and W need them."""

from collections.abc import Sequence
from typing import Any

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.studies.items import Items
from identilens.studies.structure.settings import Shorter


def texts_of_length(lens: Lens, texts: Any, length: int, shorter: Shorter) -> Items:
    """Return texts cut to exactly ``length`` tokens, special ones included; too short ones are an error, or skipped.

    Raises:
        InputError: For texts that are too short, fewer than two texts, or input that is not made of tokens.
    """
    items = Items(lens, lens.reader.entries(texts, length), length)
    long_enough = [number for number, item in enumerate(items) if _size(item, number) >= length]
    short = len(items) - len(long_enough)
    if short and shorter == "error":
        raise InputError(
            f"{short} of {len(items)} texts have fewer than {length} tokens. Lower length (--length), or leave them "
            "out with shorter='skip' (--shorter skip)."
        )
    if len(long_enough) < 2:
        raise InputError(
            f"a structure is what several texts have in common; expected at least 2 texts of {length} tokens, got "
            f"{len(long_enough)}. Give more texts, or lower length (--length)."
        )
    return items.chosen(long_enough)


def special_positions(lens: Lens, items: Sequence[Item]) -> list[int]:
    """Return the positions that hold a special token in every text."""
    special = set(getattr(lens.tokenizer, "all_special_ids", ()))
    places = set(range(len(items[0].tensors["input_ids"])))
    for item in items:
        ids = item.tensors["input_ids"].tolist()
        places = {place for place in places if ids[place] in special}
    return sorted(places)


def _size(item: Item, number: int) -> int:
    """Return the number of tokens of the shortest sequence of a text."""
    if not item.tokens or "input_ids" not in item.tensors:
        raise InputError(
            f"text {number} is not made of tokens; a structure needs texts or token ids of one length."
        )
    return min(map(len, item.tokens.values()))
