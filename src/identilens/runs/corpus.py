"""Texts on disk: any number of them, read one by one when they are used."""

import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from shutil import copyfile
from typing import Any, overload
from weakref import finalize

IN_MEMORY = 10_000
"""Largest number of texts that stay in memory as a list."""

_SHARED = "texts.jsonl"


class FromFile:
    """Texts with the options from which they were read.

    Attributes:
        load_options: The options by name; None for texts that were given in Python.
    """

    load_options: Mapping[str, Any] | None = None


class TextList(FromFile, list[Any]):
    """Texts in memory."""


class Corpus(FromFile, Sequence[Any]):
    """Texts, pairs or lists of token ids in a temporary file; memory holds where each begins, eight bytes per text.

    The source is read once.

    Args:
        texts: The texts.

    Attributes:
        digest: The sha256 of all texts.
        known_lengths: Whether another process has checked that no text is too long.
    """

    known_lengths = False

    def __init__(self, texts: Iterable[Any]) -> None:
        handle, name = tempfile.mkstemp(prefix="identilens-", suffix=".jsonl")
        self._file, self._starts, digest = Path(name), array("Q", [0]), hashlib.sha256()
        with os.fdopen(handle, "wb") as stream:
            for text in texts:
                line = json.dumps(text, ensure_ascii=False).encode() + b"\n"
                stream.write(line)
                digest.update(line)
                self._starts.append(self._starts[-1] + len(line))
        self.digest = digest.hexdigest()
        self._descriptor = os.open(self._file, os.O_RDONLY)
        finalize(self, os.close, self._descriptor)
        finalize(self, self._file.unlink, missing_ok=True)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return _text_of(
            os.pread(self._descriptor, self._starts[at + 1] - self._starts[at], self._starts[at])
        )

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def reference(self, folder: Path) -> "CorpusReference":
        """Return what another process needs to make the corpus; a copy of its file is written into the folder."""
        copyfile(self._file, folder / _SHARED)
        return CorpusReference()


@dataclass(frozen=True)
class CorpusReference:
    """A corpus whose file is in the folder that is shared with another process."""

    def restored(self, folder: Path) -> Corpus:
        """Return the corpus, with a file of its own."""
        with (folder / _SHARED).open("rb") as lines:
            corpus = Corpus(map(_text_of, lines))
        corpus.known_lengths = True
        return corpus


def _text_of(line: bytes) -> Any:
    text = json.loads(line)
    return (
        tuple(text)
        if isinstance(text, list) and all(isinstance(part, str) for part in text)
        else text
    )


def in_memory_or_on_disk(texts: Iterable[Any]) -> Sequence[Any]:
    """Return the texts of an iterable as a list, or as a `Corpus` if they are many strings or pairs of strings."""
    stream = iter(texts)
    first = list(islice(stream, IN_MEMORY))
    more = list(islice(stream, 1))
    if not more:
        return first
    if any(type(text) not in (str, tuple) for text in (*first, *more)):  # such as tagged texts
        return [*first, *more, *stream]
    return Corpus(chain(first, more, stream))
