"""The ``identilens`` command: one file for each subcommand, errors in one place."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from identilens.cli.alternatives import alternatives
from identilens.cli.audit import audit
from identilens.cli.common import console, errors
from identilens.cli.demo import demo
from identilens.cli.figures import figures
from identilens.cli.intervals import intervals
from identilens.cli.mixing import mixing
from identilens.cli.report import report
from identilens.cli.selfcheck import selfcheck
from identilens.cli.tokens import tokens
from identilens.errors import IdentilensError

app = typer.Typer(
    help="How much of a transformer's attention and hidden states is determined by what it computes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
for command in (audit, intervals, alternatives, mixing, tokens, report, figures, selfcheck, demo):
    app.command()(command)


def _show_version(wanted: bool) -> bool:
    if wanted:
        console.print(version("identilens"))
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the command line: exit code 2 for bad input, 1 for a failed check, 0 otherwise."""
    try:
        app()
    except IdentilensError as error:
        errors.print(f"[bold red]error:[/] {_escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
