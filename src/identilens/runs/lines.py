"""Lines of text files, plain or compressed; the decompressed size and the length of a line are bounded."""

import gzip
import io
import lzma
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from identilens.errors import InputError
from identilens.runs.settings import Size

MAX_TEXT_BYTES = 4 * 2**30
"""Default of the largest number of bytes that are read of a file, after decompression."""

LONGEST_LINE = 2**26
"""Largest number of characters in a line."""

Limit = Annotated[int | None, Ge(0)]
"""Number of texts, or of their tokens, that are read."""

MostBytes = Annotated[Size, Ge(1)]
"""Number of bytes that a file may contain after decompression."""

STANDARD_INPUT = Path("-")

READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""Errors of reading a file that is damaged or not readable."""

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def kind_of(file: Path) -> str:
    """Return the extension of a file without that of its compression, such as ``.csv`` for ``texts.csv.gz``."""
    return file.with_suffix("").suffix if file.suffix in _OPENERS else file.suffix


def open_text(
    file: Path,
    encoding: str = "utf-8",
    newline: str | None = None,
    most: int = MAX_TEXT_BYTES,
    errors: str = "strict",
) -> io.TextIOWrapper:
    """Return an open text file, decompressed if its name ends in .gz or .xz; "-" is the standard input.

    A byte order mark is skipped. Reading more than ``most`` bytes raises InputError.
    """
    codec = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    opened = (
        sys.stdin.buffer if file == STANDARD_INPUT else _OPENERS.get(file.suffix, open)(file, "rb")
    )
    stream = io.BufferedReader(_Bounded(opened, file, most), 2**16)
    return io.TextIOWrapper(stream, encoding=codec, newline=newline, errors=errors)


def is_stream(file: Path) -> bool:
    """Return whether a file can be read only once; raises InputError if it cannot be read."""
    if file == STANDARD_INPUT:
        return True
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        raise InputError(f"no such file: {file}. Check the path given to file=....") from None
    if not stat.S_ISFIFO(mode) and not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device"
        raise InputError(
            f"{file} is {what}; expected a file with texts, or - for the standard input."
        )
    return stat.S_ISFIFO(mode)


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


def too_large(file: Path, most: int) -> InputError:
    """Return the error for a file that contains more bytes than allowed."""
    return InputError(
        f"{file} contains more than {most:,} bytes of text. Pass a larger max_text_bytes=..., or limit=... for fewer."
    )


def numbered_lines(
    stream: io.TextIOWrapper, file: Path, encoding: str = "utf-8"
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers; the file is open with ``errors="surrogateescape"``.

    Raises:
        InputError: For a line that is too long or not in the encoding, more bytes than allowed, or a damaged file.
    """
    remedy = "Save it as UTF-8, or name its encoding with encoding=... (for example latin-1)."
    number = 1
    try:
        while line := stream.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise InputError(
                    f"more than {LONGEST_LINE - 1:,} characters. Put one text per line."
                )
            try:
                line.encode()
            except UnicodeEncodeError as error:
                byte = ord(line[error.start]) - 0xDC00
                raise InputError(f"byte {byte:#04x} is not {encoding}. {remedy}") from error
            yield number, line
            number += 1
    except InputError as error:
        raise InputError(f"{file}, line {number}: {error}") from error
    except UnicodeError as error:
        why = getattr(error, "reason", error)
        raise InputError(
            f"{file}, line {number} or later, is not {encoding}: {why}. {remedy}"
        ) from error
    except READ_ERRORS as error:
        raise InputError(f"{file} cannot be read: {error}") from error
