"""Plain and compressed files, told apart by their extensions; the decompressed size is bounded."""

import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from identilens.errors import InputError

READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""Errors of reading a file that is damaged or not readable."""

MAX_TEXT_BYTES = 4 * 2**30
"""Default of the largest number of bytes that are read of a file, after decompression."""

STANDARD_INPUT = Path("-")

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def open_bytes(file: Path, most: int = MAX_TEXT_BYTES) -> io.BufferedReader:
    """Return an open file, decompressed if its name ends in .gz or .xz; "-" is the standard input.

    Reading more than ``most`` bytes of it raises InputError.
    """
    opened = sys.stdin.buffer if file == STANDARD_INPUT else _OPENERS.get(file.suffix, open)(file, "rb")
    return io.BufferedReader(_Bounded(opened, file, most), 2**16)


def open_text(
    file: Path, encoding: str = "utf-8", newline: str | None = None, most: int = MAX_TEXT_BYTES
) -> io.TextIOWrapper:  # fmt: skip
    """Return an open text file, as `open_bytes`; a byte order mark is skipped."""
    codec = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    return io.TextIOWrapper(open_bytes(file, most), encoding=codec, newline=newline)


def kind_of(file: Path) -> str:
    """Return the extension of a file without that of its compression, such as ``.csv`` for ``texts.csv.gz``."""
    return file.with_suffix("").suffix if file.suffix in _OPENERS else file.suffix


def too_large(file: Path, most: int) -> InputError:
    """Return the error for a file that contains more bytes than allowed."""
    return InputError(f"{file} contains more than {most:,} bytes of text. Pass a larger --max-text-bytes, or --limit.")


class _Bounded(io.RawIOBase):
    """A stream from which only a limited number of bytes can be read."""

    def __init__(self, stream: Any, file: Path, most: int) -> None:
        self._stream, self._file, self._most, self._left = stream, file, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # Never more than the buffer holds: a few bytes of a compressed file may expand to gigabytes.
        content = self._stream.read1(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise too_large(self._file, self._most)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if self._file != STANDARD_INPUT:
            self._stream.close()
        super().close()
