"""``identilens figures``: the figures of a result folder as PNG, SVG and PDF."""

from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import console
from identilens.cli.report import FolderArgument
from identilens.report import save_figures


def figures(
    folder: FolderArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to; figures/ in the folder.")] = None,
    formats: Annotated[
        str, typer.Option("--formats", help="Any of png, svg, pdf, with commas between.")
    ] = "png,svg,pdf",
) -> None:
    """Draw the report's figures for print."""
    chosen = tuple(name.strip() for name in formats.split(","))
    for path in save_figures(folder, out, chosen):
        console.print(path, soft_wrap=True)
