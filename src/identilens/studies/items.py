"""What a model reads of texts: all at once, or of very many texts each when it is asked for; tokens of words."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from identilens.errors import InputError
from identilens.models.families import position_limit
from identilens.models.inputs import Item, LengthError
from identilens.models.lens import Lens
from identilens.runs.corpus import Corpus

T = TypeVar("T")

_SAMPLE = 32
"""Items of a `Corpus` that show how texts are tokenised."""

_LONGEST_NAME = 255
"""Characters of a file's name on common file systems."""

_MOST_PIECES = 4
"""Largest number of tokens for a character."""

_MOST_ADDED = 16
"""Largest number of tokens that a tokenizer adds to a text."""

_KEPT = 256
"""Items that stay in memory: those of the part that is worked on."""


class ItemList(list[Item]):
    """Items in memory.

    Attributes:
        streamed: Whether texts are tokenised when they are asked for, so that their lengths are not known before.
    """

    streamed = False


class LazyItems(Sequence[Item]):
    """Items of a `Corpus`, tokenised when they are asked for and released after a while.

    ``check`` is called with each item and its number.

    Attributes:
        streamed: As in `ItemList`.

    Raises:
        InputError: When a text is asked for that cannot be used, naming its number.
    """

    streamed = True

    def __init__(
        self,
        lens: Lens,
        corpus: Corpus,
        max_length: int | None,
        check: Callable[[Item, int], None] | None = None,
    ) -> None:
        self.corpus, self.max_length, self._check = corpus, max_length, check
        self._lens, self._read = lens, lru_cache(maxsize=_KEPT)(self._one)

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return self._read(range(len(self))[index])

    def tokenised(self, number: int) -> Item:
        """Return an item that is neither checked nor kept; errors have its number."""
        try:
            return self._lens.read([self.corpus[number]], self.max_length)[0]
        except InputError as error:
            message = str(error).replace("text 0", f"text {number:,}", 1)
            if isinstance(error, LengthError):
                raise LengthError(message, {number: error.lengths[0]}) from error
            raise InputError(message) from error

    def _one(self, number: int) -> Item:
        item = self.tokenised(number)
        if self._check is not None:
            self._check(item, number)
        return item


Items = ItemList | LazyItems


def read_items(lens: Lens, texts: Any, max_length: int | None) -> Items:
    """Return the items of texts; those of a `Corpus` are tokenised when they are asked for.

    Raises:
        InputError: For texts that cannot be used, such as all texts that are longer than the model reads, and for the
            name of a file in place of its text.
    """
    given = [texts] if isinstance(texts, str) else texts if isinstance(texts, list) else []
    for text in given[:_SAMPLE]:
        if isinstance(text, str) and _is_file(text):
            raise InputError(
                f"{text!r} is the name of a file, not a text. Read its texts with identilens.read_texts({text!r}) "
                f"(--file {text}); to use the name as a text, put a space before it."
            )
    if not isinstance(texts, Corpus):
        return ItemList(lens.read(texts, max_length))
    items = LazyItems(lens, texts, max_length)
    if max_length is None and not texts.known_lengths:
        _check_lengths(lens, items)
    return items


def _check_lengths(lens: Lens, items: LazyItems) -> None:
    """Raise an error that names all texts that are too long, before any work; only long ones are tokenised."""
    limit = position_limit(lens.model.config)
    if limit is None:
        return
    too_long: dict[int, int] = {}
    for number, text in enumerate(items.corpus):
        parts = (text,) if isinstance(text, str) else text
        # Pieces of a character are single bytes, of which it has up to four.
        if (
            _MOST_PIECES * sum(len(part) if isinstance(part, str) else 1 for part in parts)
            + _MOST_ADDED
            > limit
        ):
            try:
                items.tokenised(number)
            except LengthError as error:
                too_long |= error.lengths
    if too_long:
        raise lens.reader.length_error(too_long, len(items), truncated=False)


def _is_file(text: str) -> bool:
    """Return whether a text is one word that names a file with an ending."""
    one_word = len(text) <= _LONGEST_NAME and not any(map(str.isspace, text))
    return one_word and bool(Path(text).suffix) and Path(text).is_file()


def sample(items: Items) -> Sequence[Item]:
    """Return the items by which to judge how texts are tokenised: all in memory, or the first ones."""
    return items[:_SAMPLE] if items.streamed else items


def identities(items: Items) -> Sequence[str] | tuple[int, str]:
    """Return what identifies the texts of items in provenance: each by itself, very many by one digest."""
    if isinstance(items, LazyItems):
        # Another tokenizer shows in any texts.
        read = " ".join(item.identity for item in sample(items))
        return len(items), hashlib.sha256(f"{items.corpus.digest} {read}".encode()).hexdigest()
    return [item.identity for item in items]


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
