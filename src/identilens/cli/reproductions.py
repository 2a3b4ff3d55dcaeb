"""The command of each reproduction, made from its `Figure` when it is called."""

from collections.abc import Callable
from typing import Any

from identilens.cli.commands import with_options
from identilens.cli.options import EngineOptions, RunOptions, quiet_transformers
from identilens.errors import InputError
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.registry import REPRODUCTIONS, figure_named
from identilens.runs.bucket import local_folder, url_in
from identilens.runs.progress import watched
from identilens.runs.terminal import say


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a reproduction, by its name with underscores."""
    if name.startswith("__"):
        raise AttributeError(name)
    return reproduction_command(name.replace("_", "-"))


def reproduction_command(name: str) -> Callable[..., None]:
    """Return the function whose parameters are the options of a reproduction: of its settings and of the run."""
    figure = figure_named(name)

    def command(**given: Any) -> None:
        quiet_transformers()
        run = given["run"]
        if url_in(run.out) is not None:
            raise InputError(
                f"a reproduction writes into a folder of this machine; got --out {run.out}."
            )
        out = local_folder(run.out)
        if out.exists() and not out.is_dir():
            raise InputError(
                f"--out {run.out} is no folder. Choose another, before the work begins."
            )
        engine = {"engine": given.get("engine", EngineOptions()).made()} if figure.shared else {}
        settings = given.get("settings") or figure.settings_type()
        with watched(figure.unit, True) as update:
            result = figure.make(settings, out, progress=update, **run.choices, **engine)
        write_reproduction(name, figure.source, result, out)
        say(result.findings)
        say(f"results: {out}")

    groups = [("settings", "Settings", figure.settings_type), ("run", "Run", RunOptions)]
    if figure.shared:
        groups.append(("engine", "Engine", EngineOptions))
    return with_options(command, REPRODUCTIONS[name], groups)
