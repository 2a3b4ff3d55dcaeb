"""What a model reads of texts: each text when it is asked for."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens

_KEPT = 256
"""Items that stay in memory: those of the part that is worked on."""


class Items(Sequence[Item]):
    """What a model reads of texts. All are read once, to check them; then each when it is asked for.

    Args:
        lens: The model.
        texts: The texts; see `Lens.capture`.
        max_length: Number of tokens to which they are cut.

    Attributes:
        entries: The texts, one by one.
        lengths: Number of positions of each.
        names: All tokens that occur.
        digests: The sha256 of all that the model reads of each text.

    Raises:
        InputError: For a text that cannot be used, such as one that is longer than the model reads, and for the name of
            a file in place of its text.
    """

    def __init__(self, lens: Lens, texts: Any, max_length: int | None) -> None:
        for text in texts if type(texts) is list else [texts]:
            if isinstance(text, str) and _is_file(text):
                raise InputError(
                    f"{text!r} is the name of a file, not a text. Read its texts with identilens.read_texts({text!r}) "
                    f"(--file {text}); to use the name as a text, put a space before it."
                )
        entries = lens.reader.entries(texts, max_length)

        @lru_cache(_KEPT)
        def read(number: int) -> Item:
            return lens.reader.read_one(entries[number], number, max_length)

        self.entries, self.names = entries, set[str]()
        self.lengths, self.digests = list[int](), list[bytes]()
        self._read = read
        for item in map(read, range(len(entries))):
            self.lengths.append(item.length)
            self.names.update(*item.tokens.values())
            identity = item.identity.encode("utf-8", "surrogatepass")
            self.digests.append(hashlib.sha256(identity).digest())

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int | slice) -> Any:
        numbers: Any = range(len(self))[index]
        return [*map(self._read, numbers)] if isinstance(index, slice) else self._read(numbers)


def _is_file(text: str) -> bool:
    """Return whether a text is the name of a file with an ending."""
    with suppress(OSError, ValueError):  # a text that is too long for a name, or has a zero
        return bool(Path(text).suffix) and Path(text).is_file()
    return False
