"""Files as they are or compressed, told apart by the ends of their names."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

READ_ERRORS = (OSError, EOFError, lzma.LZMAError)
"""What reading a file raises when it is damaged or cannot be had."""

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def open_file(file: Path, mode: str = "rt", **options: Any) -> Any:
    """Return an open file, decompressed on the way where its name ends in .gz or .xz."""
    return _OPENERS.get(file.suffix, open)(file, mode, **options)


def kind_of(file: Path) -> str:
    """Return the end of a file's name that says what it holds, such as ``.csv`` for ``texts.csv.gz``."""
    return file.with_suffix("").suffix if file.suffix in _OPENERS else file.suffix
