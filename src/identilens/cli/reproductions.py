"""The command of each reproduction, made from its settings when it is called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from identilens.cli.commands import with_options
from identilens.cli.later import called
from identilens.cli.options import RayOptions, RunOptions, quiet_transformers
from identilens.errors import InputError
from identilens.reproduce.options import OPTIONS, SharedSettings
from identilens.reproduce.registry import REPRODUCTIONS, figure_named
from identilens.runs.terminal import say

write_reproduction = called("identilens.reproduce.record:write_reproduction")


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a reproduction, by its name with underscores."""
    if name.startswith("__"):
        raise AttributeError(name)
    return reproduction_command(name.replace("_", "-"))


def reproduction_command(name: str) -> Callable[..., None]:
    """Return the function whose parameters are the options of a reproduction: of its settings and of the run."""
    kind = OPTIONS[name]
    shared = issubclass(kind, SharedSettings)

    def command(**given: Any) -> None:
        quiet_transformers()
        run = given.get("run", RunOptions())
        out = Path(run.out or name)
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is no folder: choose one with --out.")
        cluster = {"ray": given.get("cluster", RayOptions()).ray or False} if shared else {}
        settings = given.get("settings") or kind()
        result = figure_named(name)(
            settings, out, resume=run.resume, overwrite=run.overwrite, **cluster
        )
        write_reproduction(name, result, out)
        say(result.findings)
        say(f"results: {out}")

    groups = [("settings", "Settings", kind), ("run", "Run", RunOptions)]
    if shared:
        groups.append(("cluster", "Cluster", RayOptions))
    return with_options(command, REPRODUCTIONS[name], groups)
