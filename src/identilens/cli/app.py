"""The ``identilens`` program: its commands, and how it ends on errors. Imports nothing heavy."""

import os
import re
import signal
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, Group
from cyclopts.config import Dict

from identilens.errors import CheckFailedError, IdentilensError, InputError, SettingError
from identilens.reproduce.registry import REPRODUCTIONS
from identilens.runs.terminal import printable, say
from identilens.runs.toml import read_toml
from identilens.studies.registry import STUDIES

_OPTION = "--config"
_SOURCES = {"--text", "--file", "--dataset", "--image", "--prompt", "--chat"}
"""Text sources; one on the command line replaces all of the file's."""


def add_from_file(app: App, command: tuple[str, ...], arguments: Any) -> None:
    """Give each option of a command that was not typed its value in the file of ``--config``, if one is named.

    Those at the top of the file are for every command, those under a command's name are that command's.

    Raises:
        InputError: If the file cannot be read, has no options of the command, or wants to run a checkpoint's code.
        CycloptsError: If it has keys that are no options.
    """
    typed = {name: option.tokens for option in arguments if option.tokens for name in option.names}
    if _OPTION not in typed:
        return
    file = Path(typed[_OPTION][0].value)
    table = content = read_toml(file)
    values = {name: value for name, value in content.items() if not isinstance(value, dict)}
    for word in command:
        table = table.get(word, {})
    values |= table
    if not values:
        raise InputError(
            f"{file} has no options of {' '.join(command)}: those under a command's name are that command's. Move "
            "model, file and others that every command may read above the first [name]."
        )
    if _SOURCES & typed.keys():
        values = {name: value for name, value in values.items() if f"--{name}" not in _SOURCES}
    flag = "--trust-remote-code"
    if values.get("trust_remote_code") and flag not in typed:
        raise InputError(
            f"{file}: a file does not let code of a checkpoint run. Type {flag} if you trust it."
        )
    Dict(values, source=str(file))(app, (), arguments)


QUESTIONS = Group("Questions", sort_key=0)
RESULTS = Group("Results", sort_key=1)
HIDDEN = Group("Further commands", show=False)
COMMANDS = {
    "explore": (
        "identilens.cli.explore:explore",
        "A local web page: type a text, see a model's attention.",
        QUESTIONS,
    ),
    "export": (
        "identilens.cli.show:export",
        "A finished run as html, figures, json or csv.",
        RESULTS,
    ),
    "compare": ("identilens.cli.show:compare_runs", "Compare finished runs of one study.", RESULTS),
    "verify": (
        "identilens.cli.show:verify_folder",
        "Repeat a finished run: are its tables identical.",
        RESULTS,
    ),
    "check": (
        "identilens.cli.show:check",
        "Check certificates by their own numbers alone.",
        RESULTS,
    ),
    "selfcheck": (
        "identilens.cli.selfcheck:selfcheck",
        "Prove capture on a model, or list the model types.",
        HIDDEN,
    ),
}
"""Commands that are not studies: module and function, the help line, and the heading in the help."""
SUBCOMMANDS = {
    "lab": "Models that the papers train, build or prune.",
    "lab dyck": "Dyck languages: models that solve the task with attention that does not show how.",
    "lab encoder": "Identifiable encoders and their training.",
    "reproduce": "Published tables and figures, repeated.",
}
"""Commands that have commands of their own, and their help lines."""

_FORMATTED: Any = {"help_formatter": "default"}
"""Help of all but the program itself, whose list of commands is plain."""
_RESEARCH = ", ".join(name for name, entry in STUDIES.items() if entry.research)
_HELP = f"""How much of a transformer's attention is determined, and what has an effect.
For research: {_RESEARCH}, and lab and reproduce for the papers."""


def make_app() -> App:
    """Return the program with all its commands: studies, reproductions and others. No command is imported yet."""
    app = App(
        name="identilens",
        help=_HELP,
        help_formatter="plain",
        version=version("identilens"),
        suppress_keyboard_interrupt=False,
        config=add_from_file,
    )
    for flag in ("--help", "--version"):
        app[flag].group = HIDDEN
    apps = {"": app}
    for name, words in SUBCOMMANDS.items():
        parent, _, last = name.rpartition(" ")
        group = None if parent else HIDDEN
        apps[name] = App(name=last, help=words, group=group, **_FORMATTED)
        apps[parent].command(apps[name])
    commands = dict(COMMANDS)
    for name, entry in STUDIES.items():
        path = f"identilens.cli.commands:{name}"
        commands[name] = path, entry.help, HIDDEN if entry.research else QUESTIONS
    for name, words in REPRODUCTIONS.items():
        path = f"identilens.cli.reproductions:{name}"
        commands[f"reproduce {name}"] = path, words, HIDDEN
    for order, (name, (path, words, group)) in enumerate(commands.items()):
        parent, _, last = name.rpartition(" ")
        apps[parent].command(
            path,
            name=last,
            help=words,
            group=None if parent else group,
            sort_key=order,
            **_FORMATTED,
        )
    return app


_RESUMED = "With --out finished parts are saved: the same command with --resume continues."
_ARGUMENT = re.compile(r"\b([a-z_]+)=(?:True\b|\.\.\.)")
"""An argument of Python in a message, such as ``resume=True``: the command line names its option instead."""


_UNUSED = re.compile(r"^Unused Tokens: \[(.+)\]\.$", re.DOTALL)
"""What is said of words that no option takes."""


def main() -> None:
    """Run the command line: exit code 2 for bad input, 1 for a failed check, 130 when stopped, 0 otherwise."""
    # Threads that wait sleep: where other programs use the cores, spinning takes many times as long. Read by torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(
                printable(f"warning: {message}"), file=sys.stderr
            )
            make_app()(
                sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_none"
            )
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left (`| head`). SIGPIPE's default action would also end a run whose worker died.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (CycloptsError, IdentilensError) as error:
        say(_words(error), error=True)
        sys.exit(1 if isinstance(error, CheckFailedError) else 2)
    except KeyboardInterrupt:
        say(f"stopped. {_RESUMED}", error=True)
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


def _words(error: Exception) -> str:
    """Return the message of an error; options are named as they are typed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, IdentilensError):
        cause = cause.__cause__
    if isinstance(cause, SettingError):
        option = f"--{cause.setting.replace('_', '-')}"
        return f"expected {option} {cause.expected}; got {cause.got!r:.200}."
    words = _ARGUMENT.sub(
        lambda match: f"--{match[1].replace('columns', 'column').replace('_', '-')}",
        str(cause or error),
    )
    return _UNUSED.sub(r"no option takes \1; texts are given with --text or --file.", words)
