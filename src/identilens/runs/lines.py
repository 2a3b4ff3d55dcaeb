"""Lines of text files, plain or compressed."""

import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from identilens.errors import InputError
from identilens.runs.settings import NonNegative

MOST_CHARACTERS = 20_000
"""Largest number of characters of texts given in Python, or of conversations, that are stored with a run."""

Limit = NonNegative | None
"""Number of texts, or of their tokens, that are read."""

STANDARD_INPUT = Path("-")

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def kind_of(file: Path) -> str:
    """Return the extension of a file without that of its compression, such as ``.csv`` for ``texts.csv.gz``."""
    return file.with_suffix("").suffix if file.suffix in _OPENERS else file.suffix


def read_lines(file: Path, encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file, or of the standard input ("-"), with their positions, for messages.

    A file is decompressed if its name ends in .gz or .xz. Lines keep their ends; a byte order mark is skipped.

    Raises:
        InputError: For a missing, damaged or unreadable file, or a line that is not in the encoding; the message names
            the line.
    """
    number = 0
    try:
        with _opened(file, "utf-8-sig" if encoding == "utf-8" else encoding) as stream:
            for line in stream:
                number += 1
                position = f"{file}, line {number}"
                if "\0" in line:
                    raise InputError(
                        f"{position}: a null character. If the file is UTF-16, pass encoding='utf-16'."
                    )
                yield position, line
    except (LookupError, UnicodeError) as error:
        raise InputError(
            f"{file}, line {number + 1} or later, is not {encoding}: {error}. Save it as UTF-8, or name its encoding "
            "with encoding=... (for example latin-1)."
        ) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{file} cannot be read: {error}. Check its path.") from error


def _opened(file: Path, encoding: str) -> AbstractContextManager[Any]:
    """Return the text of a file as a stream."""
    if file == STANDARD_INPUT:
        stdin: Any = sys.stdin
        stdin.reconfigure(encoding=encoding, newline="")
        return nullcontext(stdin)
    return _OPENERS.get(file.suffix, open)(file, "rt", encoding=encoding, newline="")
