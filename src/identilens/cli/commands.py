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
    """Return the command of a study by its name."""
    if name not in STUDIES:
        raise AttributeError(name)
    return study_command(STUDIES[name])


def study_command(entry: Entry) -> Callable[..., None]:
    """Return the function whose parameters are the options of a study: of its inputs, its settings and the run."""
    groups = [
        *((name, *INPUTS[name]) for name in entry.takes),
        ("run", "Run", RunOptions),
        ("settings", "Settings", resolve_name(entry.settings)),
        ("prints", "What is printed", PrintOptions),
        ("cluster", "Cluster", RayOptions),
    ]

    def command(
        run: RunOptions,
        settings: Settings,
        prints: PrintOptions,
        cluster: RayOptions,
        **groups_of_inputs: Any,
    ) -> None:
        if run.out is None and (run.resume or run.overwrite):
            raise InputError("--resume and --overwrite are for a folder: name it with --out.")
        inputs = load_inputs(groups_of_inputs)
        quiet_transformers()
        options = {}
        for group in groups_of_inputs.values():
            options |= vars(group)
        bound = bound_study(
            resolve_name(entry.study),
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
            ray=cluster.ray or False,
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
    """Return what calls a function with groups of options, each a parameter that is flattened on the command line.

    A group is the name of the parameter, the heading in the help, and the settings; the help has them in this order.
    The words are its help.
    """

    def command(**typed: Any) -> None:
        # cyclopts leaves out a group when none of its options was typed.
        function(**{name: typed.get(name) or settings() for name, _, settings in groups})

    parameters = []
    for name, heading, settings in groups:
        options = inspect.signature(settings).parameters.values()
        needed = any(option.default is option.empty for option in options)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                # Defaults are checked when they are used: a check may import what the help does not need.
                default=inspect.Parameter.empty if needed else object.__new__(settings),
                annotation=Annotated[
                    settings, Parameter(name="*", group=Group.create_ordered(heading))
                ],
            )
        )
    command.__doc__ = words
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {}
    return command
