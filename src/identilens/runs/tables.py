"""Tables of a result: made row by row and by column name, shown in the terminal and in Markdown."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from identilens.charts.labels import ROUNDING, cell
from identilens.runs.terminal import plain

Columns = Mapping[str, Any]
"""Columns of a table and their polars types, in order."""

_SHOWN, _WIDE = 12, 9
"""Rows and columns of a table that the terminal shows."""

Row = dict[str, Any]
"""A row of a table, by column."""

Tables = dict[str, pl.DataFrame]
"""Tables by name, or by title."""

HEAD: Columns = {"text": pl.Int64, "layer": pl.Int64, "head": pl.Int64, "kind": pl.String}
"""Columns that identify a head on a text; everything counts from 0."""


def decimals(*names: str) -> Columns:
    """Return columns of decimal numbers."""
    return dict.fromkeys(names, pl.Float64)


def integers(*names: str) -> Columns:
    """Return columns of whole numbers."""
    return dict.fromkeys(names, pl.Int64)


def table_of(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return a table from rows that give every column by its name.

    Raises:
        KeyError: If a row lacks a column, or has one that is not in the table.
    """
    rows = list(rows)
    for row in rows:
        if row.keys() != columns.keys():
            raise KeyError(f"a row must have the columns {list(columns)}; got {list(row)}")
    return pl.DataFrame(rows, schema=columns)


def print_table(title: str, frame: pl.DataFrame) -> None:
    """Print the first rows and columns of a frame in the terminal, numbers to the right.

    Columns without any value are left out.
    """
    rows, frame = len(frame), frame.fill_nan(None)
    frame = frame.select(column for column in frame if column.null_count() < max(rows, 1))
    view, shown = Table(box=SIMPLE_HEAD, padding=0), frame[:_SHOWN, :_WIDE]
    for name, kind in shown.schema.items():
        side = "right" if kind.is_numeric() else "left"
        view.add_column(plain(name.replace("_", " ")), justify=side, overflow="fold")
    for row in shown.iter_rows():
        view.add_row(*map(plain, map(cell, row, shown.columns)))
    Console().print(plain(title), view)
    if shown.shape != frame.shape:
        Console().print(f"In all: {counted(rows, 'row')} and {frame.width} columns.")


def markdown_text(value: Any) -> str:
    """Return a value as text of one line that Markdown shows as it is: a name has no links, code or HTML."""
    return re.sub(r"([\\`\[\]<>|])", r"\\\1", " ".join(str(value).split()))


def markdown_table(frame: pl.DataFrame, digits: int = 3) -> str:
    """Return a frame as a Markdown table, numbers to the right."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.{digits}f}"
        return "" if value is None else markdown_text(value)

    rules = ["---:" if kind.is_numeric() else "---" for kind in frame.dtypes]
    lines = [frame.columns, rules, *([cell(value) for value in row] for row in frame.iter_rows())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def counted(count: int, what: str) -> str:
    """Return a number of things in words: "1 text", "1,200 texts"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def ends(digits: int) -> list[pl.Expr]:
    """Return the columns ``lo`` and ``hi`` with so many decimals, rounded outward."""
    unit = 10**digits
    room = ROUNDING * unit
    low, high = pl.col("lo") * unit + room, pl.col("hi") * unit - room
    # Whole numbers have no negative zero.
    return [end.cast(pl.Int64) / unit for end in (low.floor(), high.ceil())]
