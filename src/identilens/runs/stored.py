"""Texts with random access: held in memory, found in a file by the offsets of its lines, or scanned in a table."""

import json
import os
import tempfile
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import Any
from weakref import finalize

import polars as pl

from identilens.errors import InputError

_BLOCK = 1024
"""Rows of a table that are in memory at a time."""

_LEAST = 64
"""Bytes that each text of an iterator counts, so that one that never ends reaches its limit."""


class Texts(Sequence[Any]):
    """Texts, or pairs of texts, of which any is read when it is asked for.

    Attributes:
        load_options: The options from which they were read; None for texts that were given in Python.
    """

    load_options: Mapping[str, Any] | None = None

    @abstractmethod
    def _one(self, number: int) -> Any:
        """Return a text by its number."""

    def __getitem__(self, index: int | slice) -> Any:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self._one(number) for number in numbers]
        return self._one(numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __repr__(self) -> str:
        more = ", …" if len(self) > 3 else ""
        return f"[{', '.join(map(repr, self[:3]))}{more}]"

    def sent(self) -> Sequence[Any]:
        """Return the texts as another machine can read them."""
        return self


class HeldTexts(Texts):
    """Texts in memory."""

    def __init__(self, texts: Iterable[Any]) -> None:
        self._texts = list(texts)

    def __len__(self) -> int:
        return len(self._texts)

    def _one(self, number: int) -> Any:
        return self._texts[number]


class FileTexts(Texts):
    """Texts that lie in a file one after the other; memory has where each begins.

    Args:
        file: The file.
        starts: Where each text begins, in bytes, and where the last one ends.
        parse: Turns the bytes of a text into the text.

    Raises:
        InputError: When a text is read, if the file has changed since.
    """

    def __init__(self, file: Path, starts: "array[int]", parse: Callable[[bytes], Any]) -> None:
        self._file, self._starts, self._parse = file.absolute(), starts, parse
        self._state = self._stat()

    @cached_property
    def _descriptor(self) -> int:
        descriptor = os.open(self._file, os.O_RDONLY)
        finalize(self, os.close, descriptor)
        return descriptor

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_descriptor"}

    def _stat(self) -> tuple[int, int]:
        status = self._file.stat()
        return status.st_size, status.st_mtime_ns

    def _one(self, number: int) -> Any:
        start, end = self._starts[number : number + 2]
        try:
            changed = self._stat() != self._state
            content = os.pread(self._descriptor, end - start, start)
        except OSError as error:
            raise InputError(f"{self._file} cannot be read: {error.strerror}.") from error
        if changed:
            raise InputError(f"{self._file} was changed while it was read. Run again.")
        return self._parse(content)


class SpooledTexts(FileTexts):
    """Texts in a temporary file, which is deleted with them."""

    def __init__(self, texts: Iterable[Any]) -> None:
        handle, name = tempfile.mkstemp(prefix="identilens-", suffix=".jsonl")
        file, starts = Path(name), array("Q", [0])
        finalize(self, file.unlink, missing_ok=True)
        with os.fdopen(handle, "wb") as stream:
            for text in texts:
                line = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
                stream.write(line)
                starts.append(starts[-1] + len(line))
        super().__init__(file, starts, _text_of)

    def sent(self) -> Sequence[Any]:
        """Return the texts in memory: no other machine sees the file."""
        return [*self]


def _text_of(content: bytes) -> Any:
    text = json.loads(content.decode("utf-8", "surrogatepass"))
    is_pair = isinstance(text, list) and all(isinstance(part, str) for part in text)
    return tuple(text) if is_pair else text


class RowTexts(Texts):
    """Texts of a table on disk, of which a block of rows is in memory.

    Args:
        scan: Opens the table's columns of texts, from its path.
        file: The file of the table.
        count: Number of texts.
        parse: Turns a row into a text.
    """

    def __init__(
        self,
        scan: Callable[[Path], pl.LazyFrame],
        file: Path,
        count: int,
        parse: Callable[[Mapping[str, Any]], Any],
    ) -> None:
        self._scan, self._file, self._count, self._parse = scan, file.absolute(), count, parse
        self._held = -1, pl.DataFrame()

    def __len__(self) -> int:
        return self._count

    def _one(self, number: int) -> Any:
        block, row = divmod(number, _BLOCK)
        if self._held[0] != block:
            table = self._scan(self._file).slice(block * _BLOCK, _BLOCK)
            self._held = block, table.collect()
        return self._parse(self._held[1].row(row, named=True))


def kept(texts: Iterable[Any], most: int) -> Texts:
    """Return the texts of an iterator: strings and pairs in a temporary file, others in memory.

    Args:
        texts: The texts.
        most: Largest number of their bytes.

    Raises:
        InputError: For what is no text, as soon as it comes, and for more bytes than allowed: an iterator may have no
            end. One that waits for its first text is waited for.
    """
    stream = _bounded(texts, most)
    first = next(stream, None)
    if first is None:
        return HeldTexts([])
    whole = chain([first], stream)
    return SpooledTexts(whole) if type(first) in (str, tuple) else HeldTexts(whole)


def _bounded(texts: Iterable[Any], most: int) -> Iterator[Any]:
    left = most
    for number, text in enumerate(texts):
        if text is None or isinstance(text, Number | bytes):
            raise InputError(
                f"text {number} is a {type(text).__name__}; expected a string, a pair of strings, token ids or image."
            )
        if isinstance(text, str) and not text.strip():
            raise InputError(f"text {number} is empty. Remove it, or give at least one word.")
        parts = text if isinstance(text, tuple) else (text,)
        left -= max(_LEAST, *(len(part) for part in parts if isinstance(part, str | list)), 0)
        if left < 0:
            raise InputError(
                f"the first {number + 1:,} texts have more than {most:,} bytes. Pass limit=... if they have no end, or "
                "a larger max_text_bytes=...."
            )
        yield text
