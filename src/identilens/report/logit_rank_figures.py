"""The figure of logit ranks for papers (Bhardwaj et al. 2021, Fig. 5), drawn by matplotlib."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from identilens.report.paper import SERIES, layer_colors, new_sheet, save_sheets
from identilens.results.logit_ranks import LogitRanks


def save_logit_rank_figures(
    result: LogitRanks, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """Write ``logit_rank_by_length`` and return its paths: least logit ranks of alternatives against length.

    Args:
        result: The result.
        folder: Where to write; made where missing.
        formats: Any of png, svg, pdf.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(_sheets(result), folder, formats)


def logit_rank_sheet(result: LogitRanks) -> Figure:
    """Return least logit ranks against length, one dot a head, with the range over its alternatives."""
    table = result.table
    figure = new_sheet(4.6, 3.0)
    axes = figure.add_subplot()
    drawn = axes.scatter(
        table["n_key"], table["mean_rank"], c=table["layer"], cmap=layer_colors(), s=9, linewidths=0, zorder=3
    )
    axes.vlines(table["n_key"], table["lowest_rank"], table["highest_rank"], color="0.7", linewidth=0.8)
    ends = [float(table["n_key"].min() or 0), float(table["n_key"].max() or 0)]  # pyright: ignore[reportArgumentType] integers
    axes.plot(ends, [end - 1 for end in ends], color=SERIES[5], linewidth=0.9, label="largest possible (n − 1)")
    for d_k in table["d_k"].unique().sort():
        axes.axhline(d_k, color=SERIES[1], linestyle="--", linewidth=0.9, label=f"$d_k$ = {d_k}")
    axes.set_ylim(bottom=0)
    axes.set(xlabel="Length (number of keys, tokens)", ylabel="Least logit rank of alternatives")
    if table["layer"].n_unique() > 1:
        figure.colorbar(drawn, ax=axes, label="Layer")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _sheets(result: LogitRanks) -> Iterator[tuple[str, Figure]]:
    yield "logit_rank_by_length", logit_rank_sheet(result)
