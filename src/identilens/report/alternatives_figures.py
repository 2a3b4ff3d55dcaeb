"""Figures of alternatives for papers, drawn by matplotlib."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from identilens.report.alternatives_report import TITLES, map_prefix
from identilens.report.heatmaps import axis_tokens
from identilens.report.map_sheet import maps_sheet
from identilens.report.paper import MARKERS, SERIES, new_sheet, save_sheets
from identilens.results.alternatives import Alternatives

MOST_MAPS = 24
"""Sheets of maps drawn at most: the heads with the largest distance come first."""


def save_alternatives_figures(
    result: Alternatives, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """Write the figures of alternatives and return their paths.

    ``distance_and_change`` (each alternative by its distance from the weights and the change of the final hidden
    state) and ``maps_text<t>_layer<l>_head<h>_<alternative>``.

    Args:
        result: The result.
        folder: Where to write; made where missing.
        formats: Any of png, svg, pdf.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(_figures(result), folder, formats)


def _figures(result: Alternatives) -> Iterator[tuple[str, Figure]]:
    found = result.table.drop_nulls("mean_total_variation")
    yield "distance_and_change", _distance_sheet(found)
    for row in found.sort("mean_total_variation", descending=True).head(MOST_MAPS).iter_rows(named=True):
        prefix = map_prefix(row)
        names = {"Raw": "raw", "Effective": "effective", "Alternative": f"alternative_{row['alternative']}"}
        parts = {title: result.matrices[f"{prefix}.{part}"].float().numpy() for title, part in names.items()}
        queries, keys = axis_tokens(result.tokens.get(row["text"], {}), row["kind"], row["n_query"], row["n_key"])
        title = (
            f"Text {row['text']}, {row['kind']} layer {row['layer']}, head {row['head']}: "
            f"{TITLES[row['alternative']]}, final hidden state changed by {row['hidden_change']:.0e}"
        )
        yield f"maps_{prefix.replace('.', '_')}_{row['alternative']}", maps_sheet(parts, queries, keys, title)


def _distance_sheet(found: pl.DataFrame) -> Figure:
    figure = new_sheet(4.6, 3.0)
    axes = figure.add_subplot()
    for place, (name, title) in enumerate(TITLES.items()):
        rows = found.filter(pl.col("alternative") == name)
        if len(rows):
            change = rows["hidden_change"].clip(1e-16)
            axes.scatter(
                rows["mean_total_variation"], change, s=12, label=title, color=SERIES[place], marker=MARKERS[place],
                linewidths=0, alpha=0.8,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(top=1.0)
    axes.set_xlim(left=0.0)
    axes.set(
        xlabel="Mean total variation distance from the weights", ylabel="Relative change of the\nfinal hidden state"
    )
    figure.legend(loc="outside lower center", ncols=2)
    return figure
