"""The command of each study, made from the study's settings when it is called."""

import inspect
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Annotated, Any

from cyclopts import Group, Parameter

from identilens.cli.later import called
from identilens.cli.options import (
    INPUTS,
    PrintOptions,
    RayOptions,
    RunOptions,
    load_inputs,
    quiet_transformers,
)
from identilens.errors import InputError
from identilens.runs.settings import Settings
from identilens.runs.terminal import say
from identilens.studies.registry import STUDIES, Entry

bound_study = called("identilens.runs.study:bound_study")
run_study = called("identilens.runs.study:run_study")
write_report = called("identilens.studies.reports:write_report")


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a study by its name with underscores, two between the words of a subcommand."""
    if name.startswith("__"):
        raise AttributeError(name)
    return study_command(STUDIES[name.replace("__", " ").replace("_", "-")])


def study_command(entry: Entry) -> Callable[..., None]:
    """Return the function whose parameters are the options of a study: of its inputs, its settings and the run."""
    groups = [
        *((name, *INPUTS[name]) for name in entry.takes),
        ("run", "Run", RunOptions),
        ("settings", "Settings", resolve_name(entry.settings)),
        ("prints", "What is printed", PrintOptions),
        ("cluster", "Cluster", RayOptions),
    ]

    def command(**given: Any) -> None:
        # cyclopts leaves out a group when none of its options was typed.
        given = {name: default() for name, _, default in groups if name not in given} | given
        run, prints, settings = given["run"], given["prints"], given["settings"]
        if run.out is None and (run.resume or run.overwrite):
            raise InputError("--resume and --overwrite are for a folder: name it with --out.")
        inputs = load_inputs({name: given[name] for name in entry.takes})
        quiet_transformers()
        options = {}
        for name in entry.takes:
            options |= vars(given[name])
        bound = bound_study(
            resolve_name(entry.place),
            [inputs[name] for name in entry.takes],
            settings,
            options,
        )
        shown = not (prints.json or prints.quiet)
        result = run_study(
            bound,
            out=run.out,
            resume=run.resume,
            overwrite=run.overwrite,
            progress=shown,
            ray=given["cluster"].ray or False,
        )
        report = run.out and str(write_report(run.out))
        if shown:
            result.show()
            say(f"report: {report}" if report else "--out FOLDER keeps tables and a report.")
        elif prints.json:
            print(result.to_json(report=report))

    return with_options(command, entry.help, groups)


def with_options(
    function: Callable[..., None], words: str, groups: Sequence[tuple[str, str, type[Settings]]]
) -> Callable[..., None]:
    """Return a function with one parameter for each group of options, flattened on the command line.

    A group is the name of the parameter, the heading in the help, and the settings; the help has them in this order.
    The words are its help.
    """
    parameters = []
    for order, (name, heading, settings) in enumerate(groups):
        options = inspect.signature(settings).parameters.values()
        needed = any(option.default is option.empty for option in options)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                # Defaults are checked when they are used: a check may import what the help does not need.
                default=inspect.Parameter.empty if needed else object.__new__(settings),
                annotation=Annotated[
                    settings, Parameter(name="*", group=Group(heading, sort_key=order))
                ],
            )
        )
    function.__doc__ = words
    function.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    function.__annotations__ = {}
    return function
