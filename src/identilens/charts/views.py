"""Views: charts and tables of a result, declared beside its schema, each with the words that explain it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from polars import selectors

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import Charts, choose
from identilens.charts.labels import outward
from identilens.charts.page import Section

_CHOICES = ("kind", "measure")
"""Columns of which one value is shown at a time wherever a chart does not draw them."""


@dataclass(frozen=True)
class View:
    """A part of a report, declared: words, a chart of columns of a table, the table.

    Titles and texts are templates with the numbers of the finding; see `said`.

    Attributes:
        draw: Builder of the chart, such as `heat`.
        columns: What it draws, in its order. Several columns in one place are drawn as ``value``, one ``measure`` each.
        title: Heading of the section and of the chart.
        text: Paragraphs, a line each.
        table: Attribute or method of the result with the rows.
        by: Columns over whose groups means are drawn.
        also: Further columns of the tooltip.
        choices: Columns of which one value is shown at a time.
        look: What else the builder takes.
        listed: Whether the table stands below the chart.
        method: Method of the result that gives charts by name, where no builder fits.
        lines: Method of the result that gives lines of tokens.
        maps: Method of the result that gives token maps.
    """

    draw: Callable[..., AnyChart] | None = None
    columns: Sequence[str | Sequence[str]] = ()
    title: str = ""
    text: str = ""
    table: str = "table"
    by: Sequence[str] = ()
    also: Sequence[str] = ()
    choices: Sequence[str] = ()
    look: Mapping[str, Any] = field(default_factory=dict)
    listed: bool = False
    method: str = ""
    lines: str = ""
    maps: str = ""

    def frame(self, result: Any) -> pl.DataFrame:
        """Return the rows that are drawn and listed."""
        rows = getattr(result, self.table)
        frame: Any = rows() if callable(rows) else rows
        if not self.by:
            return frame
        groups = frame.group_by(self.by, maintain_order=True)
        return groups.agg(selectors.numeric().exclude(self.by).mean()).sort(self.by)

    def charts(self, name: str, result: Any) -> Charts:
        """Return the chart under a name, or those of the method; none where a column has no value."""
        if self.method:
            return getattr(result, self.method)()
        if self.draw is None:
            return {}
        frame, columns = self.frame(result), []
        if frame.is_empty():
            return {}
        for column in self.columns:
            if not isinstance(column, str):
                frame = _long(
                    outward(frame), {measure: result.label(measure) for measure in column}
                )
                column = "value"
            columns.append(column)
        choices = [
            choice
            for choice in (*_CHOICES, *self.choices)
            if choice in frame.columns and choice not in columns
        ]
        also = (*self.by, *self.also)
        frame = outward(frame.select(list(dict.fromkeys([*columns, *also, *choices]))))
        if any(frame[column].null_count() == len(frame) for column in columns):
            return {}
        title = " ".join(result.said(self.title))
        labels = {column: result.label(column) for column in frame.columns}
        chart = self.draw(
            frame,
            *columns,
            title=title,
            labels=labels,
            also=also,
            **self.look,
        )
        for choice in choices:
            chart = choose(chart, frame, choice, labels[choice])
        return {name: chart}

    def section(self, name: str, result: Any) -> Section | None:
        """Return the section of the report; none without chart, rows, lines and maps."""
        charts = self.charts(name, result)
        lines, maps = (
            getattr(result, method)() if method else () for method in (self.lines, self.maps)
        )
        frame = self.frame(result) if self.listed else pl.DataFrame()
        if not (charts or lines or maps or len(frame)):
            return None
        named = [column for column in frame.columns if column in result.words]
        return Section(
            name,
            " ".join(result.said(self.title)),
            result.said(self.text),
            list(charts.values()),
            frame,
            maps,
            " ".join(f"{words}." for words in map(result.meaning, named) if ": " in words),
            lines,
            {column: result.label(column) for column in named},
        )


def _long(frame: pl.DataFrame, measures: Mapping[str, str]) -> pl.DataFrame:
    """Return a row for each value of some columns, with ``measure``, what its column is called, and ``value``."""
    names = list(measures.values())
    rows = frame.rename(measures).with_columns(pl.col(names).cast(pl.Float64))
    index = [column for column in rows.columns if column not in names]
    return rows.unpivot(names, index=index, variable_name="measure").drop_nulls("value")
