"""The command of each reproduction, made from its settings when it is called."""

from collections.abc import Callable
from pathlib import Path

from identilens.cli.commands import with_options
from identilens.cli.later import called
from identilens.cli.options import RayOptions, RunOptions, quiet_transformers
from identilens.errors import InputError
from identilens.reproduce.options import OPTIONS, SharedSettings
from identilens.reproduce.registry import REPRODUCTIONS, figure_named
from identilens.runs.settings import Settings
from identilens.runs.terminal import say

write_reproduction = called("identilens.reproduce.record:write_reproduction")
HERE = RayOptions()
"""Without a cluster."""


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a reproduction by its name."""
    if name not in REPRODUCTIONS:
        raise AttributeError(name)
    return reproduction_command(name)


def reproduction_command(name: str) -> Callable[..., None]:
    """Return the function whose parameters are the options of a reproduction: of its settings and of the run."""

    def command(settings: Settings, run: RunOptions, cluster: RayOptions = HERE) -> None:
        quiet_transformers()
        out = Path(run.out or name)
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is no folder: choose one with --out.")
        result = figure_named(name)(
            settings,
            out,
            resume=run.resume,
            overwrite=run.overwrite,
            ray=cluster.ray or False,
        )
        write_reproduction(name, result, out)
        say(result.findings)
        say(f"results: {out}")

    kind = OPTIONS[name]
    groups = [("settings", "Settings", kind), ("run", "Run", RunOptions)]
    if issubclass(kind, SharedSettings):
        groups.append(("cluster", "Cluster", RayOptions))
    return with_options(command, REPRODUCTIONS[name], groups)
