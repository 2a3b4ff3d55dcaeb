"""The request of a run: a TOML file beside its results, with which the run can be repeated."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from identilens.errors import InputError
from identilens.runs.files import write_text
from identilens.runs.lines import MOST_CHARACTERS
from identilens.runs.toml import read_toml, toml_value

NAME = "run.toml"

_LOST = "# Given in Python and not stored: "
_FOLDERS = ("model", "dataset")
"""Options whose value is a name on the hub, or a folder."""


def input_options(names: Iterable[str], inputs: Sequence[Any]) -> dict[str, Any]:
    """Return inputs given in Python as options; what no option describes stands under the name of the input."""
    options: dict[str, Any] = {}
    for name, value in zip(names, inputs, strict=False):
        options |= _spelled(name, value) or {name: ...}
    return options


def _spelled(name: str, value: Any) -> Mapping[str, Any] | None:
    """Return the options of which an input was loaded, or those of few texts or of a short conversation."""
    if name == "chats":
        with suppress(TypeError, ValueError):
            text = json.dumps(value, ensure_ascii=False)
            return {"chat": text} if len(text) <= MOST_CHARACTERS else None
        return None
    texts = [value] if isinstance(value, str) else value
    if type(texts) is list and all(isinstance(text, str) for text in texts):
        return {"text": texts} if 0 < sum(map(len, texts)) <= MOST_CHARACTERS else None
    return getattr(value, "load_options", None)


def write_request(folder: Path, study: str, options: Mapping[str, Any]) -> None:
    """Write the options of a run into its folder; paths of files and folders that exist become absolute.

    The file names those that it cannot hold, since they are objects of Python.
    """
    lost, lines = [], []
    for name, value in options.items():
        if value not in (None, (), []):
            try:
                lines.append(f"{name} = {toml_value(_absolute(name, value))}")
            except (TypeError, ValueError):
                lost.append(name)
    head = [f"# Run it again: identilens {study} --config {NAME} --out NEW"]
    head += [_LOST + ", ".join(lost)] if lost else []
    table = f"[{'.'.join(study.split())}]"
    write_text(folder / NAME, "\n".join([*head, table, *lines, ""]))


def read_request(folder: Path, study: str) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a study's run from its folder, and the names of those that are not stored.

    Raises:
        InputError: If they cannot be read, or are of another study.
    """
    file = folder / NAME
    options: Any = read_toml(file)
    for word in study.split():
        options = options.get(word, {})
    if not options:
        raise InputError(f"{file} has no options of {study}.")
    lost = re.findall(f"^{_LOST}(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return options, [name for line in lost for name in line.split(", ")]


def _absolute(name: str, value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_absolute(name, part) for part in value]
    if name in _FOLDERS and isinstance(value, str) and Path(value).is_dir():
        value = Path(value)
    if isinstance(value, Path):
        return str(value.absolute() if value.exists() else value)
    return value
