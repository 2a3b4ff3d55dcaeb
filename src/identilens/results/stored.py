"""What every result does alike: save its tables into a folder, read them back, show a table."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from identilens.errors import OutputFolderError
from identilens.results.files import write_json, write_table
from identilens.results.run_folder import read_record


def save_run(
    folder: str | Path,
    record: dict[str, Any],
    tables: Mapping[str, pl.DataFrame],
    more: Callable[[Path], None] | None = None,
) -> None:
    """Write a result as a folder that `load_run` reads; the provenance comes last, so that half a run is no result.

    Args:
        folder: New, or of the same run.
        record: The provenance.
        tables: By file name.
        more: Writes what is no table.

    Raises:
        OutputFolderError: If the folder holds another run, or files that are no run, or cannot be written.
    """
    path = _target(folder, record)
    for name, table in tables.items():
        write_table(path / f"{name}.parquet", table)
    if more is not None:
        more(path)
    write_json(path / "provenance.json", {**record, "finished": True})


def load_run(
    folder: str | Path, analysis: str, names: Iterable[str] = ("table",)
) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    """Return the tables, by name, and the provenance of the finished run that a folder holds.

    Raises:
        OutputFolderError: If the folder holds no such run, or an interrupted one.
    """
    record = finished_record(folder, analysis)
    return {name: pl.read_parquet(Path(folder) / f"{name}.parquet") for name in names}, record


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


def markdown_table(frame: pl.DataFrame, digits: int = 3) -> str:
    """Return a frame as a Markdown table, numbers to the right."""

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)

    rules = ["---:" if kind.is_numeric() else "---" for kind in frame.dtypes]
    lines = [frame.columns, rules, *([cell(value) for value in row] for row in frame.iter_rows())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: Any) -> str:
    """Return a share in words, with one decimal; nothing for None."""
    return "" if share is None else f"{100 * share:.1f} %"


def _target(folder: str | Path, record: dict[str, Any]) -> Path:
    path = Path(folder)
    held = read_record(path) if path.is_dir() else None
    if held is None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputFolderError(f"{path} exists and holds no {record['analysis']} result. Choose another folder.")
    if held is not None and held["fingerprint"] != record["fingerprint"]:
        raise OutputFolderError(f"{path} holds another run. Choose another folder.")
    return path
