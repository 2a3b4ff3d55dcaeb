"""The figures of a token identifiability analysis for papers, drawn by matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from identilens.report.paper import MARKERS, SERIES, layer_colors, new_sheet, save_sheets
from identilens.report.tokens_series import Chart, Curve, charts
from identilens.results.tokens import TokenIdentifiability

_LEGEND: dict[str, Any] = {"loc": "outside lower center", "ncols": 2}


def save_tokens_figures(
    result: TokenIdentifiability, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """Write the figures of a token identifiability analysis and return their paths.

    ``rate_by_layer`` (Brunner et al. 2020, Fig. 2a, 11 to 13, 38, 39) and ``token_rate_by_layer``,
    ``train_and_test_<distance>`` (Fig. 7), ``across_layers_<probe>_<distance>`` (Fig. 2b, 8 to 10),
    ``neighbours_<probe>_<distance>`` (Fig. 14 to 17), ``rate_by_share_layer<l>`` (B.2).

    Args:
        result: The result.
        folder: Where to write; made where missing. Files of the same names are replaced.
        formats: Any of png, svg, pdf. Equal results give equal files.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(((chart.name, _sheet(chart)) for chart in charts(result)), folder, formats)


def _sheet(chart: Chart) -> Figure:
    # Wide legends go below, so that the axes keep their size.
    rows = -(-len(chart.curves) // 2)
    figure = new_sheet(4.6, 2.8 + 0.17 * rows)
    axes = figure.add_subplot()
    for curve in chart.curves:
        errors = [error for error in curve.errors if error is not None]
        axes.errorbar(
            curve.x,
            curve.y,
            yerr=errors if len(errors) == len(curve.y) else None,
            label=curve.label,
            color=_color(curve),
            marker=MARKERS[curve.mark % len(MARKERS)],
            markersize=3.5,
            linestyle="--" if curve.dashed else "-",
            capsize=2,
            elinewidth=0.8,
        )
    if chart.chance is not None:
        axes.axhline(chart.chance, color="0.45", linestyle=":", linewidth=1, label="chance")
    places = sorted({place for curve in chart.curves for place in curve.x})
    axes.set_xticks(places[:: -(-len(places) // 13)])
    axes.set(xlabel=chart.x_label, ylabel="Share recovered", title=chart.title, ylim=(0, 1.03))
    handles, labels = axes.get_legend_handles_labels()
    # Plain lines come before those with error bars; chance belongs at the end.
    order = sorted(range(len(labels)), key=lambda place: labels[place] == "chance")
    figure.legend([handles[place] for place in order], [labels[place] for place in order], **_LEGEND)
    return figure


def _color(curve: Curve) -> object:
    return SERIES[curve.tone % len(SERIES)] if curve.shade is None else layer_colors()(curve.shade)
