"""Reading and writing TOML; imports nothing heavy."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from identilens.errors import InputError

_LARGEST = 2**24
"""Largest number of bytes in a file."""

_DEEPEST = 10
"""Largest depth of tables and lists in a file."""

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\."""
_LONG_KEY = re.compile(rf"""(?<![\w"'-])(?:{_PART}[ \t]*+){{100}}""")
"""A dotted key for which the parser would need much memory."""


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        InputError: If it cannot be read, or is no TOML.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        deep = _LONG_KEY.search(text.decode()) is not None
        content = {} if deep else tomllib.loads(text.decode())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}. Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not valid TOML: {error}") from error
    values: list[Any] = [content]
    for _ in range(_DEEPEST):
        nested = [one.values() if isinstance(one, dict) else one for one in values]
        values = [one for several in nested for one in several if isinstance(one, dict | list)]
    if values or deep:
        # Recursion would end on them.
        raise InputError(
            f"{file} has values that are nested more than {_DEEPEST} deep; options need no such depth."
        )
    return content


def toml_value(value: Any) -> str:
    """Return a value as TOML; raises TypeError or ValueError for what it cannot hold."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, bool | int | float):
        return repr(value).lower()
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()
    # A string of JSON is one of TOML, but for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
