"""Reports and figures of results that are one table: what it says, the table itself, charts of its columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from identilens.report.page import Page, Section, write_page
from identilens.report.paper import MARKERS, SERIES, drawable, new_sheet, save_sheets

Points = Sequence[tuple[float | int | None, float | int | None]]


@dataclass(frozen=True)
class Chart:
    """Lines over one axis.

    Attributes:
        name: Of the figure's file.
        title: What is seen.
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        lines: (x, y) by name; points without a value, or without a place on a logarithmic axis, are left out.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical one is.
    """

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    log_x: bool = False
    log_y: bool = False

    def drawn(self) -> dict[str, list[tuple[float | int, float | int]]]:
        """Return the points that can be drawn, by name of the line."""
        return {
            name: [
                (x, y)
                for x, y in points
                if x is not None and y is not None and isfinite(x) and isfinite(y)
                and not (self.log_x and x <= 0) and not (self.log_y and y <= 0)
            ]
            for name, points in self.lines.items()
        }  # fmt: skip


@dataclass(frozen=True)
class TableView:
    """What a report of one table shows.

    Attributes:
        title: Heading.
        subject: What was measured, in a line.
        finding: The finding, a sentence each.
        table: The numbers.
        charts: Charts of them.
        record: Provenance.
        numbers: Headline numbers: value, label.
    """

    title: str
    subject: str
    finding: Sequence[str]
    table: pl.DataFrame
    charts: Sequence[Chart]
    record: Mapping[str, Any]
    numbers: Sequence[tuple[str, str]] = field(default_factory=tuple)


def write_table_report(view: TableView, path: str | Path) -> Path:
    """Write the report as one HTML file and return its path.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    rows = [[_cell(value) for value in row] for row in view.table.iter_rows()]
    charts = [
        {"title": one.title, "x": one.x, "y": one.y, "log_x": one.log_x, "log_y": one.log_y,
         "lines": [{"name": name, "points": points} for name, points in one.drawn().items()]}
        for one in view.charts
    ]  # fmt: skip
    page = Page(
        title=view.title,
        subject=view.subject,
        finding=view.finding,
        numbers=view.numbers,
        record=view.record,
        sections=[
            Section("charts", "Charts", "table/charts.html", {"titles": [one.title for one in view.charts]}),
            Section("numbers", "Numbers", "table/table.html", {"columns": view.table.columns, "rows": rows}),
        ],
        data={"charts": charts},
        scripts=("table/charts.js",),
    )
    return write_page(page, path)


def save_table_figures(
    view: TableView, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """Write each chart as a figure for papers and return the paths.

    Args:
        view: What to draw.
        folder: Where to write; made where missing. Files of the same names are replaced.
        formats: Any of png, svg, pdf. Equal results give equal files.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(((one.name, chart_sheet(one)) for one in view.charts), folder, formats)


def chart_sheet(chart: Chart) -> Figure:
    """Return a chart on paper."""
    figure = new_sheet(4.4, 3.0)
    panel = figure.subplots()
    drawn = chart.drawn()
    for number, (name, points) in enumerate(drawn.items()):
        panel.plot(
            [x for x, _ in points], [y for _, y in points], label=drawable(name), color=SERIES[number % len(SERIES)],
            marker=MARKERS[number % len(MARKERS)], markersize=3.5,
        )  # fmt: skip
    panel.set_xscale("log" if chart.log_x else "linear")
    if chart.log_x:
        # Such axes hold a few sizes, which are more useful to read than powers of ten.
        places = sorted({x for points in drawn.values() for x, _ in points})
        panel.set_xticks(places, [f"{x:g}" for x in places])
        panel.minorticks_off()
    panel.set_yscale("log" if chart.log_y else "linear")
    panel.set_xlabel(chart.x, parse_math=False)
    panel.set_ylabel(chart.y, parse_math=False)
    if len(chart.lines) > 1:
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
