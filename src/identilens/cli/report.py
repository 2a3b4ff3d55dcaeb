"""``identilens report``: the HTML report of a result folder."""

from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import console
from identilens.results import Audit

FolderArgument = Annotated[Path, typer.Argument(help="Folder given to --out.")]


def report(
    folder: FolderArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; report.html in the folder.")] = None,
) -> None:
    """Write the report of a finished run as one self-contained HTML file."""
    path = Audit.load(folder).to_html(out or folder / "report.html")
    console.print(f"report: {path}", soft_wrap=True)
