"""``identilens report``: the HTML report of a result folder."""

from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import console
from identilens.report import write_report

FolderArgument = Annotated[Path, typer.Argument(help="Folder given to --out.")]


def report(
    folder: FolderArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; report.html in the folder.")] = None,
) -> None:
    """Write the report of a finished run as one self-contained HTML file."""
    console.print(f"report: {write_report(folder, out)}", soft_wrap=True)
