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

_SENT = "texts.jsonl"


class FromFile:
    """Texts with the options from which they were read.

    Attributes:
        asked: The options by name; None for texts that were given in Python.
    """

    asked: Mapping[str, Any] | None = None


class TextList(FromFile, list[Any]):
    """Texts in memory."""


class Corpus(FromFile, Sequence[Any]):
    """Texts, pairs or lists of token ids in a temporary file; memory holds where each begins, eight bytes per text.

    The source is read once.

    Args:
        texts: The texts.

    Attributes:
        received: Whether it comes from another process, which has checked it.
    """

    received = False

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
        self._open()
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
        line = os.pread(self._descriptor, self._starts[at + 1] - self._starts[at], self._starts[at])
        text = json.loads(line)
        return tuple(text) if isinstance(text, list) and all(isinstance(part, str) for part in text) else text

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def reference(self, folder: Path) -> "CorpusReference":
        """Return what another process needs to open the corpus; its file is linked or copied into the folder."""
        copyfile(self._file, folder / _SENT)
        return CorpusReference(self._starts, self.digest)

    @classmethod
    def at(cls, file: Path, starts: array, digest: str) -> "Corpus":
        """Return the corpus in a file; the file is not deleted with it."""
        corpus = cls.__new__(cls)
        corpus._file, corpus._starts, corpus.digest, corpus.received = file, starts, digest, True
        corpus._open()
        return corpus

    def _open(self) -> None:
        self._descriptor = os.open(self._file, os.O_RDONLY)
        finalize(self, os.close, self._descriptor)


@dataclass(frozen=True)
class CorpusReference:
    """What is needed beside its file to open a corpus in another process."""

    starts: array
    digest: str

    def restored(self, folder: Path) -> Corpus:
        """Return the corpus, whose file is in the folder of what was sent."""
        return Corpus.at(folder / _SENT, self.starts, self.digest)


def stored(texts: Iterable[Any]) -> Sequence[Any]:
    """Return the texts of an iterable as a list, or as a `Corpus` if they are many strings or pairs of strings."""
    stream = iter(texts)
    first = list(islice(stream, IN_MEMORY))
    more = list(islice(stream, 1))
    if not more:
        return first
    if any(type(text) not in (str, tuple) for text in (*first, *more)):  # such as tagged texts
        return [*first, *more, *stream]
    return Corpus(chain(first, more, stream))
