"""The request of a run: a TOML file beside its results, with which the run can be repeated."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
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


@dataclass(frozen=True)
class Request:
    """The study of a run, with its inputs and settings as options.

    Attributes:
        study: Name of the study.
        options: Inputs and settings, by the names of the options.
        lost: Names of the inputs and settings that were given as objects in Python, so that no option describes them.
    """

    study: str
    options: Mapping[str, Any]
    lost: Sequence[str] = ()

    @classmethod
    def of(
        cls, study: str, names: Sequence[str], inputs: Sequence[Any], settings: Mapping[str, Any]
    ) -> "Request":
        """Return the request of a study with inputs given in Python and settings by name."""
        options: dict[str, Any] = {}
        lost: list[str] = []
        for name, value in zip(names, inputs, strict=False):
            spelled = getattr(value, "load_options", None)
            if name == "texts":
                spelled = spelled or _spelled_out(value)
            if name == "chats":
                spelled = _as_json(value)
            options |= spelled or {}
            lost += [] if spelled else [name]
        return cls(study, {**options, **settings}, lost)

    def write(self, folder: Path) -> None:
        """Write the request into the folder of its run; paths of files and folders that exist become absolute."""
        lost, lines = list(self.lost), []
        for name, value in self.options.items():
            if value not in (None, (), []):
                try:
                    lines.append(f"{name} = {toml_value(_absolute(name, value))}")
                except (TypeError, ValueError):
                    lost.append(name)
        head = [f"# Run it again: identilens {self.study} --config {NAME} --out NEW"]
        head += [_LOST + ", ".join(lost)] if lost else []
        table = f"[{'.'.join(self.study.split())}]"
        write_text(folder / NAME, "\n".join([*head, table, *lines, ""]))

    @classmethod
    def read(cls, folder: Path, study: str) -> "Request":
        """Return the request in the folder of a study's run.

        Raises:
            InputError: If it cannot be read, or is of another study.
        """
        file = folder / NAME
        options: Any = read_toml(file)
        for word in study.split():
            options = options.get(word, {})
        if not options:
            raise InputError(f"{file} has no options of {study}.")
        lines = file.read_text(encoding="utf-8").split("\n")
        lost = [line.removeprefix(_LOST).split(", ") for line in lines if line.startswith(_LOST)]
        return cls(study, options, list(chain.from_iterable(lost)))


def _spelled_out(texts: Any) -> dict[str, Any]:
    """Return texts as options if they are few; otherwise none."""
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return {}
    return {"text": texts} if 0 < sum(map(len, texts)) <= MOST_CHARACTERS else {}


def _as_json(chats: Any) -> dict[str, Any]:
    """Return conversations as an option if they are short and plain values; otherwise none."""
    with suppress(TypeError, ValueError):
        text = json.dumps(chats, ensure_ascii=False)
        return {"chat": text} if len(text) <= MOST_CHARACTERS else {}
    return {}


def _absolute(name: str, value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_absolute(name, one) for one in value]
    if name in _FOLDERS and isinstance(value, str) and Path(value).is_dir():
        value = Path(value)
    if isinstance(value, Path):
        return str(value.absolute() if value.exists() else value)
    return value
