"""Texts of one length, as R and W need them: clipped, or cut into windows."""

from collections.abc import Iterator, Sequence
from typing import Any

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.runs.stored import SpooledTexts
from identilens.studies.items import Items
from identilens.studies.structure.settings import Cut, Shorter

_REMEDY = "Lower length (--length), or leave them out with shorter='skip' (--shorter skip)."


def texts_of_length(
    lens: Lens, texts: Any, length: int, *, cut: Cut = "clip", shorter: Shorter = "error"
) -> Items:
    """Return texts of exactly ``length`` tokens, special tokens included.

    ``clip`` keeps the start of each text; ``window`` cuts it into pieces one after the other, each with the special
    tokens that open and close a text, and leaves out what remains. Texts that are too short are an error, or skipped.

    Raises:
        InputError: For texts that are too short, fewer than two texts, or input that is not made of tokens.
    """
    if cut == "window":
        entries = enumerate([texts] if isinstance(texts, str) else texts)
        texts = SpooledTexts(
            piece for number, entry in entries for piece in _pieces(lens, entry, number, length)
        )
    entries = lens.reader.entries(texts, length) if len(texts) else []
    items = Items(lens, entries, length)
    short = [number for number, item in enumerate(items) if _too_short(item, number, length)]
    if short and shorter == "error":
        raise InputError(
            f"{len(short)} of {len(items)} texts have fewer than {length} tokens; text {short[0]} has "
            f"{items.lengths[short[0]]}. {_REMEDY}"
        )
    left_out = set(short)
    items = items.chosen(number for number in range(len(items)) if number not in left_out)
    if len(items) < 2:
        raise InputError(
            f"a structure is what several texts have in common; expected at least 2 texts of {length} tokens, got "
            f"{len(items)}. Give more texts, or lower length (--length)."
        )
    return items


def special_positions(lens: Lens, items: Sequence[Item]) -> list[int]:
    """Return the positions that hold a special token in every text."""
    special = _special(lens)
    places = range(len(items[0].tensors["input_ids"]))
    for item in items:
        ids = item.tensors["input_ids"].tolist()
        places = [place for place in places if ids[place] in special]
        if not places:
            break
    return [*places]


def _special(lens: Lens) -> set[int]:
    return set(getattr(lens.tokenizer, "all_special_ids", None) or [])


def _too_short(item: Item, number: int, length: int) -> bool:
    if not item.tokens or "input_ids" not in item.tensors:
        raise InputError(
            f"text {number} is not made of tokens; a structure needs texts or token ids of one length."
        )
    return any(len(tokens) < length for tokens in item.tokens.values())


def _pieces(lens: Lens, entry: Any, number: int, length: int) -> Iterator[list[int]]:
    if isinstance(entry, str):
        if lens.tokenizer is None:
            raise InputError(
                f"text {number} needs a tokenizer, and the model has none. Give token ids."
            )
        ids = list(lens.tokenizer(entry, verbose=False)["input_ids"])
    elif isinstance(entry, list):
        ids = list(entry)
    else:
        raise InputError(
            f"text {number} is a {type(entry).__name__}; windows are cut from strings and lists of token ids. "
            "Use cut='clip' (--cut clip) for pairs and batches."
        )
    special = _special(lens)
    plain = [place for place, one in enumerate(ids) if one not in special] or [
        len(ids),
        len(ids) - 1,
    ]
    start, end = plain[0], plain[-1] + 1
    room = length - start - (len(ids) - end)
    if room < 1:
        raise InputError(
            f"length {length} leaves no room beside the {length - room} special tokens of text {number}. Raise it."
        )
    if end - start < room:
        yield ids  # Too short for one window: told or skipped like any other short text.
    for place in range(start, end - room + 1, room):
        yield [*ids[:start], *ids[place : place + room], *ids[end:]]
