"""Intervals of attention weights as a part of a report or a page of their own."""

from pathlib import Path
from typing import Any

import polars as pl

from identilens.report.labels import visible_text
from identilens.report.page import Page, Section, write_page
from identilens.report.part import Part
from identilens.results.intervals import HEAD, Intervals

CELL_BUDGET = 120_000
"""Weights whose intervals travel inside a page (about 40 characters each)."""


def write_intervals_report(result: Intervals, path: str | Path) -> Path:
    """Write the report of intervals as one HTML file without outside requests, and return its path.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    part = intervals_part(result)
    name, weights = str(result.provenance["model"].get("name")), result.table
    tops = float(result.rows["certified_top"].is_not_null().mean() or 0)  # pyright: ignore[reportArgumentType] a float
    pairs = float(result.rows["certified_pairs"].sum()) / max(1, float(result.rows["pairs"].sum()))
    width = float((weights["hi"] - weights["lo"]).mean() or 0)  # pyright: ignore[reportArgumentType] a float
    page = Page(
        title="Intervals of attention weights",
        subject=name,
        finding=result.summary().splitlines(),
        numbers=(
            (f"{len(weights):,}", "weights bounded, each end proven"),
            (f"{width:.3f}", "mean width of an interval"),
            (f"{100 * tops:.0f} %", "of queries have a certain first key"),
            (f"{100 * pairs:.0f} %", "of pairs of keys have a certain order"),
        ),
        record=result.provenance,
        sections=part.sections,
        data=part.data,
        scripts=part.scripts,
    )
    return write_page(page, path)


def intervals_part(result: Intervals) -> Part:
    """Return the section that shows the intervals row by row."""
    rows = [_row(result, row) for row in _within(result).iter_rows(named=True)]
    kinds = result.tokens.select("text", "kind", "side").unique(maintain_order=True)
    tokens = {
        f"{text}.{kind}.{side}": [visible_text(token) for token in result.names(text, kind, side)]
        for text, kind, side in kinds.iter_rows()
    }
    heads = [{name: _shown(value) for name, value in row.items()} for row in result.by_head().iter_rows(named=True)]
    context = {"shown": len(rows), "rows": len(result.rows), "heads": heads}
    section = Section("intervals", "What is certain of each weight", "intervals/intervals.html", context)
    return Part([section], {"intervals": {"rows": rows, "tokens": tokens}}, scripts=["intervals/intervals.js"])


def _within(result: Intervals) -> pl.DataFrame:
    """Return the rows that fit into a page, from the first on."""
    keys = [*HEAD, "query"]
    sizes = result.table.group_by(keys).len().with_columns(pl.col("len").cast(pl.Int64))
    rows = result.rows.join(sizes, on=keys, maintain_order="left")
    return rows.filter(pl.col("len").cum_sum() <= max(CELL_BUDGET, int(rows["len"][0])))


def _row(result: Intervals, row: dict[str, Any]) -> dict[str, Any]:
    address = {name: row[name] for name in (*HEAD, "query")}
    here = pl.all_horizontal(pl.col(name) == value for name, value in address.items())
    weights, order = result.table.filter(here).sort("key"), result.order.filter(here)
    columns = ("weight", "lo", "hi", "effective", "minimum_norm")
    return {
        **address,
        "nullity": row["simplex_nullity"],
        "top": row["certified_top"],
        "pairs": row["pairs"],
        "key": weights["key"].to_list(),
        "pinned": weights["pinned"].cast(pl.Int8).to_list(),
        **{name: [float(f"{value:.5g}") for value in weights[name]] for name in columns},
        "order": [order["above"].to_list(), order["below"].to_list()],
    }


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
