"""``identilens figures``: the figures of a result folder as PNG, SVG and PDF."""

from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import console
from identilens.cli.report import FolderArgument
from identilens.report import save_audit_figures
from identilens.results import Audit


def figures(
    folder: FolderArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to; figures/ in the folder.")] = None,
    formats: Annotated[
        str, typer.Option("--formats", help="Any of png, svg, pdf, with commas between.")
    ] = "png,svg,pdf",
) -> None:
    """Draw the report's figures for print."""
    chosen = tuple(name.strip() for name in formats.split(","))
    for path in save_audit_figures(Audit.load(folder), out or folder / "figures", chosen):
        console.print(path, soft_wrap=True)
