"""Texts with random access: in memory, or in a temporary file by their offsets."""

import json
import os
import tempfile
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Number
from typing import Any
from weakref import finalize

from identilens.errors import InputError

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


class HeldTexts(Texts):
    """Texts in memory."""

    def __init__(self, texts: Iterable[Any]) -> None:
        self._texts = list(texts)

    def __len__(self) -> int:
        return len(self._texts)

    def _one(self, number: int) -> Any:
        return self._texts[number]


class SpooledTexts(Texts):
    """Texts in a temporary file, which is deleted with them; memory has where each begins.

    Another process, which may not see the file, is sent the texts themselves.
    """

    def __init__(self, texts: Iterable[Any]) -> None:
        self._file = tempfile.TemporaryFile(prefix="identilens-")  # noqa: SIM115 - open as long as the texts
        finalize(self, self._file.close)
        self._starts = array("Q", [0])
        for text in texts:
            line = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
            self._file.write(line)
            self._starts.append(self._starts[-1] + len(line))
        self._file.flush()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldTexts, ([*self],)

    def _one(self, number: int) -> Any:
        start, end = self._starts[number : number + 2]
        content = os.pread(self._file.fileno(), end - start, start)
        text = json.loads(content.decode("utf-8", "surrogatepass"))
        is_pair = isinstance(text, list) and all(isinstance(part, str) for part in text)
        return tuple(text) if is_pair else text


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
                f"the first {number + 1:,} texts contain more than {most:,} bytes. Pass a larger "
                "max_text_bytes=..., or limit=... for fewer."
            )
        yield text
