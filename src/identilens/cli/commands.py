"""The command of each study, made from the study's settings when it is called."""

import inspect
import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Annotated, Any

from cyclopts import Group, Parameter

from identilens.cli.options import (
    INPUTS,
    PrintOptions,
    RayOptions,
    RunOptions,
    load_inputs,
    quiet_transformers,
)
from identilens.runs.progress import LOG
from identilens.runs.settings import Settings
from identilens.runs.study import bound_study, run_study
from identilens.runs.terminal import say
from identilens.studies.registry import study_named
from identilens.studies.reports import write_report

_MANY = 100
"""Rows from which on a run says at its start how to choose fewer."""


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a study by its name with underscores, two between the words of a subcommand."""
    if name.startswith("__"):
        raise AttributeError(name)
    return study_command(study_named(name.replace("__", " ").replace("_", "-")))


def study_command(study: Any) -> Callable[..., None]:
    """Return the function whose parameters are the options of a study: of its inputs, its settings and the run."""
    groups = [(name, *INPUTS[name]) for name in study.takes]

    def command(**given: Any) -> None:
        quiet_transformers()
        # cyclopts leaves out a group when none of its options was typed.
        given = {name: default() for name, _, default in groups if name not in given} | given
        if "chats" in given:
            given["chats"] = given["chats"].kept()
        run, prints = given["run"], given["prints"]
        longest = getattr(given["settings"], "max_length", None)
        inputs = load_inputs(given, study.takes, {}, longest)
        bound = bound_study(study, inputs, given["settings"], [given[name] for name in study.takes])
        shown = not (prints.json or prints.quiet)
        rows = sum(bound.sizes()) if shown and bound.unit == "rows" else 0
        if rows > _MANY:
            LOG.info(
                f"{rows:,} rows of attention, one by one; --layers, --heads and --queries choose fewer."
            )
        result = run_study(
            bound, out=run.out, progress=shown, ray=given["cluster"].chosen, **run.choices
        )
        report = str(write_report(run.out))
        if shown:
            result.show()
            say(f"report: {report}")
        elif prints.json:
            finding = result.summary()
            numbers = {
                name: value if isfinite(value or 0) else None
                for name, value in finding.numbers.items()
            }
            written = {"finding": finding.text, "numbers": numbers, "report": report}
            print(json.dumps(written, allow_nan=False, default=float))

    groups = [
        *groups,
        ("run", "Run", RunOptions),
        ("settings", "Settings", study.settings_type),
        ("prints", "What is printed", PrintOptions),
        ("cluster", "Cluster", RayOptions),
    ]
    return with_options(command, study.__doc__ or "", groups)


def with_options(
    function: Callable[..., None], docstring: str, groups: Sequence[tuple[str, str, type[Settings]]]
) -> Callable[..., None]:
    """Return a function with one parameter for each group of options, flattened on the command line.

    A group is the name of the parameter, the heading in the help, and the settings; the help has them in this order.
    The first line of the docstring is the help.
    """
    parameters = []
    for order, (name, heading, settings) in enumerate(groups):
        options = inspect.signature(settings).parameters.values()
        needed = any(option.default is option.empty for option in options)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if needed else settings(),
                annotation=Annotated[
                    settings, Parameter(name="*", group=Group(heading, sort_key=order))
                ],
            )
        )
    function.__doc__ = inspect.cleandoc(docstring).split("\n\n")[0]
    function.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    function.__annotations__ = {}
    return function
