"""Lines of text files, plain or compressed; the decompressed size and the length of a line are bounded."""

import codecs
import gzip
import io
import lzma
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from identilens.errors import InputError
from identilens.runs.settings import NonNegative, Size

MAX_TEXT_BYTES = 4 * 2**30
"""Default of the largest number of bytes that are read of a file, after decompression."""

MOST_CHARACTERS = 20_000
"""Largest number of characters of texts given in Python, or of conversations, that are stored with a run."""

LONGEST_LINE = 2**24
"""Largest number of characters in a line; an object of JSON takes up to 32 bytes of memory for each."""

Limit = NonNegative | None
"""Number of texts, or of their tokens, that are read."""

MostBytes = Annotated[Size, Ge(1)]
"""Number of bytes that a file may contain after decompression."""

STANDARD_INPUT = Path("-")


_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_ENCODING = "Save it as UTF-8, or name its encoding with encoding=... (for example latin-1)."


class _Noted(io.FileIO):
    """A file that notes whether it was read to its end."""

    ended = False

    def read(self, size: int | None = -1) -> bytes:
        """Read a number of bytes."""
        found = super().read(size)
        self.ended = not found
        return found


def kind_of(file: Path) -> str:
    """Return the extension of a file without that of its compression, such as ``.csv`` for ``texts.csv.gz``."""
    return file.with_suffix("").suffix if file.suffix in _OPENERS else file.suffix


def is_stream(file: Path) -> bool:
    """Return whether a file can be read only once: a pipe, or "-" for the standard input.

    Raises:
        InputError: For a missing file, a folder or a device.
    """
    if file == STANDARD_INPUT:
        return True
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        raise InputError(
            f"no such file: {file}. Check its path (for a run to be verified: identilens verify takes another one with "
            "--file)."
        ) from None
    if stat.S_ISFIFO(mode) or stat.S_ISREG(mode):
        return stat.S_ISFIFO(mode)
    what = "a folder" if stat.S_ISDIR(mode) else "a device"
    raise InputError(f"{file} is {what}; expected a file with texts, or - for the standard input.")


def read_lines(
    file: Path, encoding: str = "utf-8", most: int = MAX_TEXT_BYTES
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file with their positions, for messages.

    A file is decompressed if its name ends in .gz or .xz. Lines keep their ends; a byte order mark is skipped.

    Raises:
        InputError: For a missing, damaged or unreadable file, a line that is too long or not in the encoding, or more
            than ``most`` bytes; the message names the line.
    """
    is_stream(file)
    try:
        name = codecs.lookup(encoding).name
        with suppress(UnicodeError):
            "".encode(name)  # a codec that is not one of text raises LookupError
    except (LookupError, ValueError) as error:
        raise InputError(f"unknown encoding {encoding!r}; try utf-8, utf-16 or latin-1.") from error
    # As the lines are counted, each would begin with a byte order mark of its own.
    plain = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(name, name)
    codec = "utf-8-sig" if plain == "utf-8" else name
    number, left = 0, most
    stdin = file == STANDARD_INPUT
    if stdin and sys.stdin is None:
        raise InputError(
            "the standard input is closed. Give a file, or pipe texts into the program."
        )
    try:
        raw: Any = sys.stdin.buffer if stdin else _Noted(file)
        opened = _OPENERS[file.suffix](raw) if file.suffix in _OPENERS else raw
        stream = io.TextIOWrapper(opened, codec, "surrogateescape", newline="")
        try:
            while line := stream.readline(min(LONGEST_LINE, left + 1)):
                number += 1
                position = f"{file}, line {number}"
                _check_characters(line, position, encoding)
                left -= len(line.encode(plain, "replace"))
                if left < 0:
                    raise InputError(
                        f"{position}: more than {most:,} bytes of text. Pass a larger max_text_bytes=..., or "
                        "limit=... for fewer."
                    )
                if len(line) == LONGEST_LINE:
                    raise InputError(
                        f"{position}: more than {LONGEST_LINE - 1:,} characters. Put one text per line."
                    )
                yield position, line
            # Python would leave out what follows the end of an .xz.
            if not (stdin or raw.ended):
                raise lzma.LZMAError("something else than .xz follows its end or stands in it")
        finally:
            stream.detach()
            if not stdin:
                opened.close()
                raw.close()
    except UnicodeError as error:
        why = getattr(error, "reason", error)
        raise InputError(
            f"{file}, line {number + 1} or later, is not {encoding}: {why}. {_ENCODING}"
        ) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def _check_characters(line: str, position: str, encoding: str) -> None:
    """Raise InputError for bytes that are not in the encoding, and for null characters."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) - 0xDC00
        raise InputError(f"{position}: byte {byte:#04x} is not {encoding}. {_ENCODING}") from error
    if "\0" in line:
        raise InputError(
            f"{position}: a null character. If the file is UTF-16, name its encoding with encoding=... (utf-16-le or "
            "utf-16-be); otherwise remove it."
        )
