"""Figures of intervals for papers, drawn by matplotlib."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from identilens.report.labels import shortened, visible_text
from identilens.report.map_sheet import token_ticks
from identilens.report.paper import SERIES, drawable, new_sheet, save_sheets
from identilens.results.intervals import HEAD, Intervals

MOST_ROWS = 12
"""Sheets of single rows drawn at most: the rows with the widest interval come first."""


def save_intervals_figures(
    result: Intervals, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """Write the figures of intervals and return their paths.

    ``widths_text<t>_layer<l>_head<h>`` (the width of every interval of a head, where more than one row was bounded)
    and ``intervals_text<t>_layer<l>_head<h>_query<q>`` (the bars of single rows).

    Args:
        result: The result.
        folder: Where to write; made where missing.
        formats: Any of png, svg, pdf.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(_figures(result), folder, formats)


def _figures(result: Intervals) -> Iterator[tuple[str, Figure]]:
    width = (pl.col("hi") - pl.col("lo")).alias("width")
    table = result.table.with_columns(width)
    for (text, layer, head, kind), rows in table.group_by(list(HEAD), maintain_order=True):
        if rows["query"].n_unique() > 1:
            yield f"widths_text{text}_layer{layer}_head{head}_{kind}", _widths_sheet(result, rows)
    widest = table.group_by([*HEAD, "query"]).agg(pl.col("width").max()).sort("width", *HEAD, "query", descending=True)
    for row in widest.head(MOST_ROWS).iter_rows(named=True):
        here = pl.all_horizontal(pl.col(name) == row[name] for name in (*HEAD, "query"))
        name = f"intervals_text{row['text']}_layer{row['layer']}_head{row['head']}_{row['kind']}_query{row['query']}"
        yield name, _row_sheet(result, table.filter(here), row)


def _row_sheet(result: Intervals, weights: pl.DataFrame, row: dict) -> Figure:
    names = [visible_text(token) for token in result.names(row["text"], row["kind"], "key")]
    query = visible_text(result.names(row["text"], row["kind"], "query")[row["query"]])
    weights = weights.sort("weight")
    places = np.arange(len(weights))
    figure = new_sheet(4.2, 0.9 + 0.115 * len(weights))
    axes = figure.add_subplot()
    colors = [SERIES[2] if pinned else SERIES[0] for pinned in weights["pinned"]]
    axes.barh(places, weights["width"], left=weights["lo"], color=colors, alpha=0.35, height=0.7)
    axes.scatter(weights["weight"], places, s=7, c=colors, linewidths=0, zorder=3)
    labels = [shortened(drawable(names[key]), 18) for key in weights["key"]]
    axes.set_yticks(places, labels, parse_math=False, fontsize=6)
    axes.set_ylim(-0.8, len(weights) - 0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("Attention weight and its interval")
    title = f"Text {row['text']}, {row['kind']} layer {row['layer']}, head {row['head']}, query {drawable(query)}"
    axes.set_title(title, parse_math=False)
    return figure


def _widths_sheet(result: Intervals, rows: pl.DataFrame) -> Figure:
    first = rows.row(0, named=True)
    names = {
        side: [visible_text(token) for token in result.names(first["text"], first["kind"], side)]
        for side in ("query", "key")
    }
    queries = rows["query"].unique().sort().to_list()
    widths = np.full((len(queries), len(names["key"])), np.nan)
    place = {query: index for index, query in enumerate(queries)}
    for query, key, width in rows.select("query", "key", "width").iter_rows():
        widths[place[query], key] = width
    side = min(5.0, max(2.0, 0.11 * widths.shape[1]))
    tall = min(5.0, max(1.2, side * widths.shape[0] / widths.shape[1]))
    figure = new_sheet(side + 1.9, tall + 1.4)
    axes = figure.add_subplot()
    image = axes.imshow(widths, cmap="cividis", vmin=0, aspect="auto", interpolation="nearest")
    token_ticks(axes, "x", names["key"], side * 72, rotation=90)
    token_ticks(axes, "y", [names["query"][query] for query in queries], tall * 72)
    axes.set(xlabel="Key token", ylabel="Query token")
    axes.set_title(f"Text {first['text']}, {first['kind']} layer {first['layer']}, head {first['head']}")
    figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, label="Width of the interval")
    return figure
