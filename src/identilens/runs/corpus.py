"""Texts in memory or on disk, with the options from which they were read."""

import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from shutil import copyfile
from typing import Any
from weakref import finalize

IN_MEMORY = 10_000
"""Largest number of texts that stay in memory as a list."""

_SHARED = "texts.jsonl"


class TextList(list[Any]):
    """Texts in memory.

    Attributes:
        load_options: The options from which they were read; None for texts that were given in Python.
    """

    load_options: Mapping[str, Any] | None = None


class Corpus(Sequence[Any]):
    """Texts, pairs or lists of token ids in a temporary file; memory holds where each begins, eight bytes per text.

    The source is read once.

    Args:
        texts: The texts.

    Attributes:
        load_options: The options from which they were read; None for texts that were given in Python.
        digest: The sha256 of all texts.
        known_lengths: Whether another process has checked that no text is too long.
    """

    load_options: Mapping[str, Any] | None = None
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

    def __getitem__(self, index: int | slice) -> Any:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        start, end = self._starts[numbers : numbers + 2]
        return _text_of(os.pread(self._descriptor, end - start, start))

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
    is_pair = isinstance(text, list) and all(isinstance(part, str) for part in text)
    return tuple(text) if is_pair else text


def in_memory_or_on_disk(texts: Iterable[Any]) -> TextList | Corpus:
    """Return the texts of an iterable as a list, or as a `Corpus` if they are many strings or pairs of strings."""
    stream = iter(texts)
    first = list(islice(stream, IN_MEMORY + 1))
    # Others, such as tagged texts, cannot be stored.
    if len(first) <= IN_MEMORY or any(type(text) not in (str, tuple) for text in first):
        return TextList([*first, *stream])
    return Corpus(chain(first, stream))
