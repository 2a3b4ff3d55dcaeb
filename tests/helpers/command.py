"""The command line: run in this process, which is much faster, or as a person runs it, in a process of its own."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import jaxtyping

from identilens.cli.app import main


@dataclass(frozen=True)
class Done:
    """How a command ended: exit code, and what it wrote with all white space as single spaces."""

    code: int
    output: str
    error: str


def identilens(*arguments, code=None):
    """Run a command in this process; with ``code``, check that it ends so."""
    written, errors = io.StringIO(), io.StringIO()
    words = list(map(str, arguments))
    with (
        patch.dict("os.environ", {"COLUMNS": "300"}),
        patch.object(sys, "argv", ["identilens", *words]),
        # Types are not checked at run time, as for users: settings are made of what was typed.
        patch.object(jaxtyping.config, "jaxtyping_disable", True),
        redirect_stdout(written),
        redirect_stderr(errors),
    ):
        try:
            main()
            ended = 0
        except SystemExit as stopped:
            ended = stopped.code or 0
    done = Done(ended, " ".join(written.getvalue().split()), " ".join(errors.getvalue().split()))
    assert code is None or done.code == code, done
    return done


def failing(*arguments):
    """Run a command that is to fail for bad input and return its message."""
    return identilens(*arguments, code=2).error


def command(*arguments):
    """What starts the program with these arguments."""
    return [sys.executable, "-m", "identilens", *map(str, arguments)]


def run(*arguments, cwd=None):
    """Run a command in a process of its own."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=cwd, timeout=300, check=False
    )
