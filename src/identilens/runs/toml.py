"""Reading and writing TOML; imports nothing heavy."""

import json
import tomllib
from pathlib import Path
from typing import Any

from identilens.errors import InputError


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        InputError: If it cannot be read, or is no TOML.
    """
    try:
        if file.is_char_device():
            raise ValueError("it is a device")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}. Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not valid TOML: {error}") from error


def toml_value(value: Any) -> str:
    """Return a value as TOML; raises TypeError or ValueError for what it cannot hold."""
    if value is None or isinstance(value, dict):
        raise TypeError(value)
    # JSON of anything else is TOML, but for this character.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    text.encode()
    return text
