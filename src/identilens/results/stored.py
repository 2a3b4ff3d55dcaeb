"""What every result does alike: take a folder to save into, open a finished one, print a table."""

from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from identilens.errors import OutputFolderError
from identilens.results.run_folder import read_record


def target_folder(folder: str | Path, record: dict[str, Any]) -> Path:
    """Return the folder that a result is to be saved in.

    Raises:
        OutputFolderError: If the folder holds another run, or files that are no run.
    """
    path = Path(folder)
    held = read_record(path) if path.is_dir() else None
    if held is None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputFolderError(f"{path} exists and holds no {record['analysis']} result. Choose another folder.")
    if held is not None and held["fingerprint"] != record["fingerprint"]:
        raise OutputFolderError(f"{path} holds another run. Choose another folder.")
    return path


def finished_record(folder: str | Path, analysis: str) -> dict[str, Any]:
    """Return the provenance of the finished run that a folder holds.

    Raises:
        OutputFolderError: If the folder holds no such run, or an interrupted one.
    """
    record = read_record(Path(folder))
    if record is None or record["analysis"] != analysis:
        raise OutputFolderError(f"{folder} holds no {analysis} result. Pass the folder given as out (--out).")
    if not record["finished"]:
        raise OutputFolderError(f"the {analysis} run in {folder} was interrupted. Finish it with --resume first.")
    return record


def print_table(title: str, frame: pl.DataFrame) -> None:
    """Print a frame in the terminal, numbers to the right."""
    view = Table(title=title)
    for name, kind in frame.schema.items():
        view.add_column(name, justify="right" if kind.is_numeric() else "left")
    for row in frame.iter_rows():
        view.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
    Console().print(view)
