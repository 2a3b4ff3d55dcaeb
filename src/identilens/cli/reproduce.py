"""What the commands of ``identilens reproduce`` share; there is one for each published table or figure."""

from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import console
from identilens.reproduce.record import Reproduction, write_reproduction

ReproductionOut = Annotated[
    Path, typer.Option("--out", "-o", help="Folder for tables, figures, README.md and provenance.json.")
]


def finish(found: Reproduction, out: Path) -> None:
    """Write a reproduction and say where it lies."""
    write_reproduction(found, out)
    console.print(found.findings, markup=False)
    console.print(f"results: {out}", soft_wrap=True)
