"""What a model reads of texts: each text when it is asked for; tokens of words."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens

T = TypeVar("T")

_LOOKED_AT = 32
"""Texts of a list that are looked at for the name of a file."""

_LONGEST_NAME = 255
"""Characters of a file's name on common file systems."""

_KEPT = 256
"""Items that stay in memory: those of the part that is worked on."""


class Items(Sequence[Item]):
    """What a model reads of texts. All are read once, to check them; then each when it is asked for.

    Args:
        lens: The model.
        entries: The texts, as `InputReader.entries` returns them.
        max_length: Number of tokens to which they are cut.

    Attributes:
        entries: The texts.
        lengths: Number of positions of each.
        names: All tokens that occur.
        digests: The sha256 of all that the model reads of each text.

    Raises:
        InputError: For a text that cannot be used, such as one that is longer than the model reads.
    """

    def __init__(self, lens: Lens, entries: Sequence[Any], max_length: int | None) -> None:
        self.entries, self.lengths, self.names = entries, array("q"), set[str]()
        self._lens, self._max_length = lens, max_length
        self._read = lru_cache(maxsize=_KEPT)(self._one)
        self.digests: list[bytes] = []
        for number in range(len(entries)):
            item = self._read(number)
            self.lengths.append(item.length)
            self.names.update(*item.tokens.values())
            identity = item.identity.encode("utf-8", "surrogatepass")
            self.digests.append(hashlib.sha256(identity).digest())

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return list(map(self._read, range(len(self))[index]))
        return self._read(range(len(self))[index])

    def _one(self, number: int) -> Item:
        return self._lens.reader.read_one(self.entries[number], number, self._max_length)


def read_items(lens: Lens, texts: Any, max_length: int | None) -> Items:
    """Return the items of texts.

    Raises:
        InputError: For texts that cannot be used, and for the name of a file in place of its text.
    """
    given = [texts] if isinstance(texts, str) else texts if type(texts) is list else []
    for text in given[:_LOOKED_AT]:
        if isinstance(text, str) and _is_file(text):
            raise InputError(
                f"{text!r} is the name of a file, not a text. Read its texts with identilens.read_texts({text!r}) "
                f"(--file {text}); to use the name as a text, put a space before it."
            )
    return Items(lens, lens.reader.entries(texts, max_length), max_length)


def _is_file(text: str) -> bool:
    """Return whether a text is one word that names a file with an ending."""
    one_word = len(text) <= _LONGEST_NAME and not any(map(str.isspace, text))
    return one_word and bool(Path(text).suffix) and Path(text).is_file()


def token_places(
    parts: Sequence[str], tokenizer: Any
) -> Iterator[tuple[str, int | None, tuple[int, int]]]:
    """Yield the name of each token of a text or pair, which part it belongs to, and its characters there.

    Special tokens belong to no part.

    Raises:
        InputError: If the tokenizer does not tell which characters make up a token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} does not give the characters of a token. "
            "Pass a fast tokenizer: AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    encoded = tokenizer(*parts, return_offsets_mapping=True, verbose=False)
    names = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    yield from zip(names, encoded.sequence_ids(0), encoded["offset_mapping"], strict=True)


def word_at(spans: Sequence[tuple[int, int, T]], place: tuple[int, int], otherwise: T) -> T:
    """Return what belongs to the word that shares most characters with a token, or something else if none does."""
    start, end = place
    overlaps = [
        (min(end, stop) - max(start, begin), own)
        for begin, stop, own in spans
        if begin < end and start < stop
    ]
    return max(overlaps, key=lambda overlap: overlap[0])[1] if overlaps else otherwise
