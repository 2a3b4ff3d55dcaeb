"""Paper figures of identifiable encoders: accuracy against key size, rank and nullity against text length."""

import polars as pl
from matplotlib.figure import Figure

from identilens.report.paper import MARKERS, SERIES, new_sheet
from identilens.results.encoder_sweep import NAMES, EncoderSweep


def accuracy_sheet(sweep: EncoderSweep) -> Figure:
    """Return accuracy against d_k, a panel each task: measured in full lines, published in dashed ones."""
    tasks = sweep.table["task"].unique(maintain_order=True).to_list()
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = new_sheet(2.6 * columns + 0.6, 2.2 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, task in zip(panels, tasks, strict=False):
        for index, heads in enumerate(("concat", "add")):
            cells = sweep.cells().filter(pl.col("task") == task, pl.col("heads") == heads)
            if not len(cells):
                continue
            style = {"color": SERIES[index], "marker": MARKERS[index], "markersize": 3.5}
            panel.errorbar(
                cells["d_k"], cells["test_accuracy"], yerr=cells["standard_error"].fill_null(0),
                label=f"{NAMES[heads]}, measured", **style,
            )  # fmt: skip
            held = cells.drop_nulls("published")
            panel.plot(
                held["d_k"].to_numpy(),
                held["published"].to_numpy(),
                linestyle="--",
                alpha=0.55,
                label=f"{NAMES[heads]}, published",
                **style,
            )
        panel.set_xscale("log", base=2)
        sizes = sorted(sweep.table["d_k"].unique())
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set_title(task)
        panel.set_xlabel("d_k")
    for panel in list(panels)[len(tasks) :]:
        panel.set_axis_off()
    first = figure.axes[0]
    first.set_ylabel("test accuracy")
    first.legend()
    return figure


def rank_sheet(ranks: pl.DataFrame, bound: int) -> Figure:
    """Return rank(T) and dim LN(T) against text length, one dot a text (Bhardwaj et al. 2021, Fig. 2 and 6).

    Args:
        ranks: As from `rank_by_length`.
        bound: d_v, the largest rank that T can have.
    """
    figure = new_sheet(4.4, 3.0)
    panel = figure.subplots()
    longest = [0, *ranks["seq_len"].top_k(1)]
    panel.plot(longest, longest, color=SERIES[2], linewidth=0.9, label="rank for nullity 0")
    panel.scatter(ranks["seq_len"], ranks["rank"], s=7, color=SERIES[1], marker=MARKERS[0], label="rank(T)")
    panel.scatter(
        ranks["seq_len"], ranks["nullity"], s=7, color=SERIES[0], marker=MARKERS[1], label="dim LN(T)", alpha=0.7
    )
    panel.axhline(bound, color=SERIES[5], linewidth=0.7, linestyle=":")
    panel.annotate(f"d_v = {bound}", (0, bound), xytext=(2, 2), textcoords="offset points", fontsize=7)
    panel.set_xlabel("tokens, d_s")
    panel.set_ylabel("dimension")
    panel.legend()
    return figure
