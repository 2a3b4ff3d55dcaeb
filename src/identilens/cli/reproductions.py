"""The command of each reproduction, made from its recipe when it is called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from identilens.cli.commands import with_options
from identilens.cli.options import EngineOptions, RunOptions, quiet_transformers
from identilens.errors import InputError
from identilens.reproduce.record import Recipe, write_reproduction
from identilens.reproduce.registry import recipe_named
from identilens.runs.bucket import local_folder, url_in
from identilens.runs.progress import watched
from identilens.runs.terminal import say


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a reproduction, by its name with underscores."""
    if name.startswith("__"):
        raise AttributeError(name)
    return reproduction_command(recipe_named(name.replace("_", "-")))


def reproduction_command(recipe: Recipe) -> Callable[..., None]:
    """Return the function whose parameters are the options of a reproduction: of its settings and of the run."""

    def command(**given: Any) -> None:
        quiet_transformers()
        run = given["run"]
        out = _folder(run.out)
        engine = {"engine": given.get("engine", EngineOptions()).made()} if recipe.shared else {}
        settings = given.get("settings") or recipe.settings_type()
        with watched(recipe.unit, True) as update:
            made = recipe.make(settings, out, progress=update, **run.choices, **engine)
        write_reproduction(made, out)
        say(made.findings)
        say(f"results: {out}")

    groups = [("settings", "Settings", recipe.settings_type), ("run", "Run", RunOptions)]
    groups += [("engine", "Engine", EngineOptions)] if recipe.shared else []
    return with_options(command, recipe.make.__doc__ or "", groups)


def _folder(out: str) -> Path:
    if url_in(out) is not None:
        raise InputError(f"a reproduction writes into a folder of this machine; got --out {out}.")
    if (folder := local_folder(out)).exists() and not folder.is_dir():
        raise InputError(f"--out {out} is no folder. Choose another, before the work begins.")
    return folder
