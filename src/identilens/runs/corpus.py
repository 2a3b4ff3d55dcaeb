"""Texts on disk: any number of them, read one by one when they are asked for."""

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

from identilens.runs.files import write_atomically

IN_MEMORY = 10_000
"""Texts up to which a list is held in place of a file."""

_SENT = "texts.jsonl"


class FromFile:
    """Texts that know what they were read from.

    Attributes:
        asked: The options that say so.
    """

    asked: Mapping[str, Any] | None = None


class TextList(FromFile, list[Any]):
    """Texts in memory."""


class Corpus(FromFile, Sequence[Any]):
    """Texts, pairs or lists of token ids in a temporary file; memory holds where each begins, eight bytes per text.

    Made once, from texts that come one by one; what they came from is not read again.

    Args:
        texts: What to keep.
    """

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

    def sent(self, folder: Path) -> "SentCorpus":
        """Return what makes it again in another process, from a copy of its file that is written into the folder."""
        write_atomically(folder / _SENT, lambda temporary: copyfile(self._file, temporary))
        return SentCorpus(self._starts, self.digest)

    @classmethod
    def at(cls, file: Path, starts: array, digest: str) -> "Corpus":
        """Return the corpus that a file holds; the file is kept."""
        made = cls.__new__(cls)
        made._file, made._starts, made.digest = file, starts, digest
        made._open()
        return made

    def _open(self) -> None:
        self._descriptor = os.open(self._file, os.O_RDONLY)
        finalize(self, os.close, self._descriptor)


@dataclass(frozen=True)
class SentCorpus:
    """What it takes, beside its file, to make a corpus again."""

    starts: array
    digest: str

    def received(self, folder: Path) -> Corpus:
        """Return the corpus, read from the folder of what is sent."""
        return Corpus.at(folder / _SENT, self.starts, self.digest)


def held(texts: Iterable[Any]) -> Sequence[Any]:
    """Return texts that come one by one as a list, or as a `Corpus` where they are many strings or pairs of them."""
    stream = iter(texts)
    first = list(islice(stream, IN_MEMORY))
    more = list(islice(stream, 1))
    if not more:
        return first
    if any(type(text) not in (str, tuple) for text in (*first, *more)):  # such as tagged texts, which are more
        return [*first, *more, *stream]
    return Corpus(chain(first, more, stream))
