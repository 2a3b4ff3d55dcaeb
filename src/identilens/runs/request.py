"""The request of a run: a TOML file beside its results, with which the run can be repeated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from identilens.errors import InputError, OutputFolderError
from identilens.runs.files import write_text
from identilens.runs.manifest import NAME as MANIFEST
from identilens.runs.manifest import Manifest
from identilens.runs.settings import Settings
from identilens.runs.toml import read_toml, toml_value

NAME = "run.toml"
_MOST_CHARACTERS = 20_000
"""Largest number of characters of texts given in Python that are stored; longer texts are not stored at all."""

_LOST = "# Given in Python and not stored: "
_FOLDERS = ("model", "compare_model", "dataset")
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

    def write(self, folder: Path) -> None:
        """Write the request into the folder of its run."""
        lost, lines = list(self.lost), []
        for name, value in self.options.items():
            if value not in (None, (), []):
                try:
                    lines.append(f"{name} = {toml_value(value)}")
                except (TypeError, ValueError):
                    lost.append(name)
        head = [
            f"# Run it again: identilens rerun FOLDER, or identilens {self.study} --config {NAME} --out NEW"
        ]
        head += [_LOST + ", ".join(lost)] if lost else []
        write_text(
            folder / NAME, "\n".join([*head, f"[{'.'.join(self.study.split())}]", *lines, ""])
        )

    @classmethod
    def read(cls, folder: Path, studies: Sequence[str]) -> "Request":
        """Return the request in a run's folder.

        Raises:
            InputError: If there is none, or it cannot be read.
            OutputFolderError: If the folder's manifest does not list it.
        """
        file = folder / NAME
        if not file.is_file():
            raise InputError(
                f"{folder} contains no {NAME}: it is no run, or of an older version. Run its command again."
            )
        if NAME not in Manifest(folder).names:
            raise OutputFolderError(
                f"{MANIFEST} of {folder} does not list {NAME}, so that it cannot be trusted. Run the command of the "
                "run again, or read the file and pass it with --config."
            )
        content = read_toml(file)
        lines = file.read_text(encoding="utf-8").split("\n")
        lost = [
            name
            for line in lines
            if line.startswith(_LOST)
            for name in line.removeprefix(_LOST).split(", ")
        ]
        for study in studies:
            options: Any = content
            for word in study.split():
                options = options.get(word) if isinstance(options, dict) else None
            if isinstance(options, dict):
                return cls(study, options, lost)
        raise InputError(
            f"{file} names no study: expected its options under one of [{'], ['.join(studies)}]."
        )


def options_of(settings: Settings) -> dict[str, Any]:
    """Return the values of settings by name; paths of files and folders that exist become absolute."""
    return _with_absolute_paths(settings.values_of(type(settings)))


def options_of_inputs(
    names: Sequence[str], inputs: Sequence[Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return inputs given in Python as options, and the names of inputs that no option describes."""
    options: dict[str, Any] = {}
    lost = ["further inputs"] if len(inputs) > len(names) else []
    for name, value in zip(names, inputs, strict=False):
        spelled = getattr(value, "load_options", None) or _spelled_out(value)
        options |= _with_absolute_paths(spelled or {})
        lost += [] if spelled else [name]
    return options, lost


def _spelled_out(texts: Any) -> dict[str, Any] | None:
    """Return texts, or pairs of texts, as options if they are few; None otherwise."""
    texts = [texts] if isinstance(texts, str | tuple) else texts
    if not isinstance(texts, list) or not texts:
        return None
    pairs = all(isinstance(one, tuple) and len(one) == 2 for one in texts)
    words = [part for pair in texts for part in pair] if pairs else texts
    if not all(isinstance(one, str) for one in words) or sum(map(len, words)) > _MOST_CHARACTERS:
        return None
    return {"text": list(words), "pairs": pairs}


def _with_absolute_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(options)
    for name in _FOLDERS:
        if isinstance(value := given.get(name), str) and Path(value).is_dir():
            given[name] = Path(value)
    return {name: _absolute(value) for name, value in given.items()}


def _absolute(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_absolute(one) for one in value]
    return str(value.absolute() if value.exists() else value) if isinstance(value, Path) else value
