"""The ``identilens`` command: one file for each subcommand, errors in one place."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from identilens.cli import reproduce_bhardwaj, reproduce_structure, reproduce_wen
from identilens.cli.alternatives import alternatives
from identilens.cli.audit import audit
from identilens.cli.common import console, errors
from identilens.cli.demo import demo
from identilens.cli.dyck import app as dyck
from identilens.cli.figures import figures
from identilens.cli.intervals import intervals
from identilens.cli.mixing import mixing
from identilens.cli.report import report
from identilens.cli.selfcheck import selfcheck
from identilens.cli.structure import structure
from identilens.cli.sweep import sweep
from identilens.cli.tokens import tokens
from identilens.cli.train import train
from identilens.errors import IdentilensError

app = typer.Typer(
    help="How much of a transformer's attention and hidden states is determined by what it computes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
for command in (
    audit, intervals, alternatives, mixing, tokens, structure, train, sweep, report, figures, selfcheck, demo
):  # fmt: skip
    app.command()(command)

reproduction = typer.Typer(
    help="Make a published table or figure again and put the published numbers beside it.", no_args_is_help=True
)
for name, command in {**reproduce_bhardwaj.COMMANDS, **reproduce_structure.COMMANDS, **reproduce_wen.COMMANDS}.items():
    reproduction.command(name)(command)
app.add_typer(reproduction, name="reproduce")
app.add_typer(dyck, name="dyck")


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
