"""``--config``: options from a TOML file, where the command line leaves them out."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from cyclopts import Token

from identilens.errors import InputError, SettingError
from identilens.reproduce.registry import REPRODUCTIONS
from identilens.runs.settings import Settings, coerce, hints_of, separated_by_commas
from identilens.runs.toml import read_toml
from identilens.studies.registry import STUDIES

_OPTION = "--config"
_SOURCES = {"text", "file", "dataset", "image", "audio"}
"""Text sources; one on the command line replaces all of the file's."""


TYPED_ONLY = {
    "trust_remote_code": "Type --trust-remote-code if you trust the code of the checkpoint; otherwise remove the line."
}
"""Options that only the command line may switch on, and what to do where a file does."""


class SettingsFile:
    """The file that ``--config`` names; cyclopts calls it with what was typed, and it adds what was not.

    Attributes:
        path: Of the file, once one was named.
        taken: Names of the settings that came from it.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.taken: set[str] = set()

    def __call__(self, app: Any, command: tuple[str, ...], arguments: Any) -> None:
        """Give each option of a command that was not typed its value in the file.

        Raises:
            InputError: If the file cannot be read, or has keys that are no options.
            SettingError: For a value that an option does not take.
        """
        options = {name: argument for argument in arguments for name in argument.names}
        if _OPTION not in options or not options[_OPTION].tokens:
            return
        self.path = Path(options[_OPTION].tokens[0].value)
        hints = _hints(app.default_command)
        del hints[_OPTION.strip("-")]
        typed = {name for name in _SOURCES if getattr(options.get(f"--{name}"), "tokens", ())}
        for name, value in _options_in(self.path, command).items():
            if name not in hints:
                raise InputError(
                    f"{self.path}: {' '.join(command)} has no option {name}; it has {', '.join(hints)}."
                )
            self.taken.add(name)
            coerce(name, hints[name], value)
            argument = options[f"--{name.replace('_', '-')}"]
            if name in TYPED_ONLY and value is True and not argument.tokens:
                raise InputError(f"{self.path}: {name} in a file has no effect. {TYPED_ONLY[name]}")
            if not argument.tokens and not (name in _SOURCES and typed):
                for index, words in enumerate(_typed(hints[name], value)):
                    argument.append(
                        Token(keyword=name, value=words, source=str(self.path), index=index)
                    )

    def complaint(self, error: SettingError) -> str:
        """Return what to say of a setting that cannot be used, named as it was written."""
        if error.setting in self.taken:
            return f"{self.path}: expected {error.setting} {error.expected}; got {error.got!r}."
        return f"expected --{error.setting.replace('_', '-')} {error.expected}; got {error.got!r}."


def _options_in(file: Path, command: tuple[str, ...]) -> dict[str, Any]:
    """Return the options for a command: those at the top of the file, and over them those under its name."""
    known = {tuple(name.split()) for name in STUDIES} | {
        ("reproduce", name) for name in REPRODUCTIONS
    }
    tables = dict(_tables(read_toml(file), known))
    for table in tables:
        if table and table not in known:
            raise InputError(
                f"{file}: there is no command [{'.'.join(table)}]. Options stand under a command's name."
            )
    options = {**tables.get((), {}), **tables.get(command, {})}
    return {name.replace("-", "_"): value for name, value in options.items()}


def _tables(
    content: dict[str, Any], known: set[tuple[str, ...]], table: tuple[str, ...] = ()
) -> Iterator[Any]:
    """Yield the path of each table that has options, and the options."""
    inner = (
        {}
        if table in known
        else {name: value for name, value in content.items() if isinstance(value, dict)}
    )
    if options := {name: value for name, value in content.items() if name not in inner}:
        yield table, options
    for name, value in inner.items():
        yield from _tables(value, known, (*table, name))


def _hints(command: Any) -> dict[str, Any]:
    """Return the annotation of each option of a command, by the option's name in Python."""
    groups = [get_args(one.annotation)[0] for one in inspect.signature(command).parameters.values()]
    return {
        name: hint
        for group in groups
        if issubclass(group, Settings)
        for name, hint in hints_of(group).items()
    }


def _typed(hint: Any, value: Any) -> Sequence[str]:
    """Return a value as it would be typed: each of several by itself, or with commas between."""
    values = value if isinstance(value, list) else [value]
    words = [str(one).lower() if isinstance(one, bool) else str(one) for one in values]
    return [",".join(words)] if separated_by_commas(hint) else words
