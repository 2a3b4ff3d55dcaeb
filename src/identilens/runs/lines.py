"""Lines of a text file, read so that no single line fills the memory."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from identilens.errors import InputError

LONGEST_LINE = 2**26
"""Largest number of characters in a line."""

LONGEST_TEXT = 2**20
"""Largest number of characters in a text that is not cut."""

PER_TOKEN = 256
"""Characters of a text that are read for each token that it will be cut to: far more than any word has."""


class Lines:
    """The lines of a stream; of a line whose text will be cut, the rest is skipped.

    Args:
        stream: The stream.
        file: Its name, for messages.
        max_length: Number of tokens that each line will be cut to. Default: lines are read whole.
    """

    def __init__(self, stream: io.TextIOWrapper, file: Path, max_length: int | None = None) -> None:
        self._stream, self._file = stream, file
        self._room = None if max_length is None else room(max_length)
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        most = self._room or LONGEST_LINE
        while True:
            try:
                line = self._stream.readline(most)
            except InputError as error:
                raise InputError(f"{self._file}, line {self.number + 1}: {error}") from error
            if not line:
                return
            self.number += 1
            if len(line) == most and not line.endswith(("\n", "\r")):
                self._skip_rest()
            yield line

    def filled(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank, with their numbers."""
        return ((self.number, line.strip()) for line in self if line.strip())

    def _skip_rest(self) -> None:
        if self._room is None:
            raise InputError(
                f"{self._file}, line {self.number} has more than {LONGEST_LINE:,} characters. Put one text per line."
            )
        while (rest := self._stream.readline(2**20)) and not rest.endswith(("\n", "\r")):
            pass


def room(max_length: int) -> int:
    """Return how many characters are read of a text that will be cut to so many tokens."""
    return max(2**16, PER_TOKEN * max_length)


def checked(text: Any, place: str, max_length: int | None) -> Any:
    """Return a text, or a pair of texts, as a tokenizer can read it; a text that will be cut is shortened.

    Raises:
        InputError: For a text with half a character (a lone surrogate), or one that no model can read.
    """
    if isinstance(text, tuple):
        return tuple(checked(part, place, max_length) for part in text)
    if max_length is not None:
        text = text[: room(max_length)]
    elif len(text) > LONGEST_TEXT:
        raise InputError(
            f"{place}: the text has {len(text):,} characters; no model reads more than {LONGEST_TEXT:,}. "
            "Pass --max-length to cut it, or split it."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place}: half a character (surrogate {text[error.start]!a}) at position {error.start}. Correct the text."
        ) from error
    return text
