"""Texts of one length, as R and W need them: clipped, or cut into windows."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens

Cut = Literal["clip", "window"]
Shorter = Literal["error", "skip"]


def texts_of_length(
    lens: Lens, texts: Any, length: int, *, cut: Cut = "clip", shorter: Shorter = "error"
) -> list[Item]:
    """Return texts of exactly ``length`` tokens, special tokens included.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `InputReader.read`.
        length: n.
        cut: ``clip`` keeps the start of each text; ``window`` cuts it into pieces one after the other, each with the
            special tokens that open and close a text, and leaves out what remains.
        shorter: What to do with texts that are too short: an ``error``, or ``skip`` them.

    Raises:
        InputError: For texts that are too short, fewer than two texts, or input that is not made of tokens.
    """
    items = lens.read(texts, length) if cut == "clip" else _windows(lens, texts, length)
    short = [number for number, item in enumerate(items) if _too_short(item, number, length)]
    if short and shorter == "error":
        first = items[short[0]]
        raise InputError(
            f"{len(short)} of {len(items)} texts have fewer than {length} tokens; text {short[0]} has {first.length}. "
            "Lower length (--length), or leave them out with shorter='skip' (--shorter skip)."
        )
    dropped = set(short)
    kept = [item for number, item in enumerate(items) if number not in dropped]
    if len(kept) < 2:
        raise InputError(
            f"a structure is what several texts have in common; expected at least 2 texts of {length} tokens, got "
            f"{len(kept)}. Give more texts, or lower length (--length)."
        )
    return kept


def special_positions(lens: Lens, items: Sequence[Item]) -> list[int]:
    """Return the positions that hold a special token in every text."""
    special = set(getattr(lens.tokenizer, "all_special_ids", None) or [])
    ids = [item.tensors["input_ids"].tolist() for item in items]
    return [place for place in range(len(ids[0])) if all(one[place] in special for one in ids)]


def _too_short(item: Item, number: int, length: int) -> bool:
    if not item.tokens or "input_ids" not in item.tensors:
        raise InputError(f"text {number} is not made of tokens; a structure needs texts or token ids of one length.")
    return any(len(tokens) < length for tokens in item.tokens.values())


def _windows(lens: Lens, texts: Any, length: int) -> list[Item]:
    entries = [texts] if isinstance(texts, str) else list(texts)
    pieces = [piece for number, entry in enumerate(entries) for piece in _pieces(lens, entry, number, length)]
    return lens.read(pieces) if pieces else []


def _pieces(lens: Lens, entry: Any, number: int, length: int) -> Iterator[list[int]]:
    if isinstance(entry, str):
        if lens.tokenizer is None:
            raise InputError(f"text {number} needs a tokenizer, and the model came without one. Give token ids.")
        ids = list(lens.tokenizer(entry, verbose=False)["input_ids"])
    elif isinstance(entry, list):
        ids = list(entry)
    else:
        raise InputError(
            f"text {number} is a {type(entry).__name__}; windows are cut from strings and lists of token ids. "
            "Use cut='clip' (--cut clip) for pairs and batches."
        )
    special = set(getattr(lens.tokenizer, "all_special_ids", None) or [])
    start = next((place for place, one in enumerate(ids) if one not in special), len(ids))
    end = next((place for place in range(len(ids), start, -1) if ids[place - 1] not in special), start)
    room = length - start - (len(ids) - end)
    if room < 1:
        raise InputError(
            f"length {length} leaves no room beside the {length - room} special tokens of text {number}. Raise it."
        )
    if end - start < room:
        yield ids  # Too short for one window: told or skipped like any other short text.
    for place in range(start, end - room + 1, room):
        yield [*ids[:start], *ids[place : place + room], *ids[end:]]
