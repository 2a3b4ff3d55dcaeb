"""The command of each reproduction, made from its `Figure` when it is called."""

from collections.abc import Callable
from typing import Any

from identilens.cli.commands import with_options
from identilens.cli.options import RayOptions, RunOptions, quiet_transformers
from identilens.errors import InputError
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.registry import REPRODUCTIONS, figure_named
from identilens.runs.files import as_path
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
        run = given.get("run", RunOptions())
        out = as_path(run.out or name)
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is no folder: choose one with --out.")
        cluster = {"ray": given.get("cluster", RayOptions()).chosen} if figure.shared else {}
        settings = given.get("settings") or figure.settings_type()
        with watched(figure.unit, True) as update:
            result = figure.make(settings, out, progress=update, **run.choices, **cluster)
        write_reproduction(name, figure.source, result, out)
        say(result.findings)
        say(f"results: {out}")

    groups = [("settings", "Settings", figure.settings_type), ("run", "Run", RunOptions)]
    if figure.shared:
        groups.append(("cluster", "Cluster", RayOptions))
    return with_options(command, REPRODUCTIONS[name], groups)
