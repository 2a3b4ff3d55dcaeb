"""What a model reads of texts: all at once, or of very many texts each when it is asked for."""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.runs.corpus import Corpus

_SAMPLE = 32
"""Items of a `Corpus` that show how texts are tokenised."""

_LONGEST_NAME = 255
"""Characters of a file's name on common file systems."""

_KEPT = 256
"""Items that stay in memory: those of the part that is worked on."""


class LazyItems(Sequence[Item]):
    """Items of a `Corpus`, tokenised when they are asked for and released after a while.

    ``check`` is called with each item and its number.

    Raises:
        InputError: When a text is asked for that cannot be used, naming its number.
    """

    def __init__(
        self, lens: Lens, corpus: Corpus, max_length: int | None, check: Callable[[Item, int], None] | None = None
    ) -> None:
        self.corpus, self.max_length, self._check = corpus, max_length, check
        self._lens, self._read = lens, lru_cache(maxsize=_KEPT)(self._one)

    def __len__(self) -> int:
        return len(self.corpus)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return self._read(range(len(self))[index])

    def _one(self, number: int) -> Item:
        try:
            item = self._lens.read([self.corpus[number]], self.max_length)[0]
        except InputError as error:
            raise InputError(str(error).replace("text 0", f"text {number:,}", 1)) from error
        if self._check is not None:
            self._check(item, number)
        return item


def read_items(lens: Lens, texts: Any, max_length: int | None) -> Sequence[Item]:
    """Return the items of texts; those of a `Corpus` are tokenised when they are asked for.

    Raises:
        InputError: For texts that cannot be used, and for the name of a file in place of its text.
    """
    given = [texts] if isinstance(texts, str) else texts if isinstance(texts, list) else []
    for text in given[:_SAMPLE]:
        if isinstance(text, str) and _is_file(text):
            raise InputError(
                f"{text!r} is the name of a file, not a text. Read its texts with identilens.read_texts({text!r}) "
                f"(--file {text}); to use the name as a text, put a space before it."
            )
    return LazyItems(lens, texts, max_length) if isinstance(texts, Corpus) else lens.read(texts, max_length)


def _is_file(text: str) -> bool:
    """Return whether a text is one word that names a file with an ending."""
    one_word = len(text) <= _LONGEST_NAME and not any(map(str.isspace, text))
    return one_word and bool(Path(text).suffix) and Path(text).is_file()


def sample(items: Sequence[Item]) -> Sequence[Item]:
    """Return the items by which to judge how texts are tokenised: all of a list, the first ones of a `Corpus`."""
    return items[:_SAMPLE] if isinstance(items, LazyItems) else items


def identities(items: Sequence[Item]) -> Sequence[str] | tuple[int, str]:
    """Return what identifies the texts of items in provenance: each by itself, very many by one digest."""
    if isinstance(items, LazyItems):
        # Another tokenizer shows in any texts.
        read = " ".join(item.identity for item in sample(items))
        return len(items), hashlib.sha256(f"{items.corpus.digest} {read}".encode()).hexdigest()
    return [item.identity for item in items]
