"""The figures of an audit for papers, drawn by matplotlib."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from identilens.report.audit_series import (
    correlation_points,
    head_map,
    kinds,
    layer_means,
    put_on_type,
    received_by_type,
    type_names,
)
from identilens.report.heatmaps import KeptMap, axis_tokens, kept_maps, matrices
from identilens.report.labels import file_names, visible_text
from identilens.report.map_sheet import maps_sheet, token_ticks
from identilens.report.paper import (
    MARKERS,
    SERIES,
    drawable,
    layer_colors,
    new_sheet,
    save_sheets,
)
from identilens.results import Audit

_LARGEST_MAP = 1024


def save_audit_figures(audit: Audit, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")) -> list[Path]:
    """Write the figures of an audit and return their paths.

    ``null_share_map``, ``correlation_map`` (by layer and head), ``correlation_by_length`` (Brunner et al. 2020,
    Fig. 1a), ``token_types_raw_effective`` (Fig. 1b, 1c), ``attention_to_type_<type>`` (Fig. 5) and
    ``maps_text<t>_layer<l>_head<h>`` (Fig. 6; for each text whose matrices were kept, the head with the
    largest null share). With several kinds of attention each name ends in the kind.

    Args:
        audit: The result.
        folder: Where to write; made where missing. Files of the same names are replaced.
        formats: Any of png, svg, pdf. Equal audits give equal files.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(_figures(audit), folder, formats)


def _figures(audit: Audit) -> Iterator[tuple[str, Figure]]:
    held = kinds(audit)
    names = type_names(audit)
    for kind in held:
        end = f"_{kind}" if len(held) > 1 else ""
        yield f"null_share_map{end}", _head_map_sheet(audit, kind, "null_share", "Mean null share", "cividis")
        yield f"correlation_map{end}", _head_map_sheet(audit, kind, "pearson", "Mean Pearson correlation", "viridis")
        yield f"correlation_by_length{end}", _length_sheet(audit, kind)
        received = received_by_type(audit, kind)
        if len(received):
            yield f"token_types_raw_effective{end}", _types_sheet(received, names, "Mean attention received")
        for key_type, part in file_names(names).items():
            towards = put_on_type(audit, kind, key_type)
            if len(towards):
                title = f"Mean attention to {drawable(visible_text(key_type))}"
                yield f"attention_to_type_{part}{end}", _types_sheet(towards, names, title)
    for one in _telling_maps(audit):
        end = f"_{one.kind}" if len(held) > 1 else ""
        yield f"maps_text{one.text}_layer{one.layer}_head{one.head}{end}", _maps_sheet(audit, one)


def _head_map_sheet(audit: Audit, kind: str, measure: str, title: str, colors: str) -> Figure:
    shown = head_map(audit, kind, measure)
    rows, columns = shown.values.shape
    figure = new_sheet(max(2.4, min(7.0, 1.4 + 0.33 * columns)), max(1.5, min(8.0, 0.8 + 0.24 * rows)))
    axes = figure.add_subplot()
    least = -1.0 if (shown.values < 0).any() else 0.0
    image = axes.imshow(shown.values, cmap=colors, vmin=least, vmax=1, aspect="auto", interpolation="nearest")
    token_ticks(axes, "x", list(map(str, shown.heads)), _points(figure, columns, 0))
    token_ticks(axes, "y", list(map(str, shown.layers)), _points(figure, rows, 1))
    axes.set(xlabel="Head", ylabel="Layer", title=title)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02).outline.set_linewidth(0)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue] a Spine
    if columns <= 16 and rows <= 32:
        for (row, column), value in np.ndenumerate(shown.values):
            if not np.isnan(value):
                ink = "k" if (value - least) / (1 - least) > 0.6 else "w"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color=ink)
    return figure


def _length_sheet(audit: Audit, kind: str) -> Figure:
    points = correlation_points(audit, kind)
    figure = new_sheet(4.6, 2.9)
    axes = figure.add_subplot()
    frame = points.frame
    size = 5 if len(frame) <= 1500 else 2.5
    layers = frame["layer"].unique().sort().to_list()
    drawn = axes.scatter(
        frame["length"].to_numpy(),
        frame["pearson"].to_numpy(),
        c=frame["layer"].to_numpy(),
        s=size,
        cmap=layer_colors(),
        alpha=0.7,
        linewidths=0,
        rasterized=len(frame) > 1500,
    )
    longest = max([1.0, *frame["length"].to_list()])
    near = [d_v for d_v in points.d_v if d_v <= 3 * longest]
    for d_v in near:
        axes.axvline(d_v, color="k", linestyle="--", linewidth=0.9)
        axes.annotate(
            f"$d_v$ = {d_v}",
            (d_v, 1.02),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            annotation_clip=False,
        )
    axes.set_xlim(0, 1.04 * max(longest, *near) if near else 1.04 * longest)
    axes.set_ylim(min(-0.02, 1.06 * min([0.0, *frame["pearson"].to_list()])), 1.03)
    axes.set(xlabel="Length (number of keys, tokens)", ylabel="Pearson correlation\n(raw, effective)")
    if len(layers) > 1:
        bar = figure.colorbar(drawn, ax=axes, label="Layer", ticks=layers[:: max(1, len(layers) // 8)])
        bar.solids.set_alpha(1)  # pyright: ignore[reportOptionalMemberAccess] a scatter's bar is filled
    return figure


def _types_sheet(frame: pl.DataFrame, names: list[str], title: str) -> Figure:
    figure = new_sheet(6.6, 2.9)
    left, right = figure.subplots(1, 2, sharey=True)
    lines, labels = [], []
    for name, means in layer_means(frame, names):
        place = names.index(name)
        color, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
        rows = frame.filter(pl.col("type") == name)
        for axes, measure in ((left, "raw"), (right, "effective")):
            axes.scatter(rows["layer"], rows[measure], s=8, color=color, marker=marker, alpha=0.4, linewidths=0)
            (line,) = axes.plot(means["layer"], means[measure], color=color, marker=marker, markersize=3.5)
        lines.append(line)
        # Matplotlib leaves labels that open with an underscore out of the legend.
        label = drawable(visible_text(name))
        labels.append(f"\u200a{label}" if label.startswith("_") else label)
    layers = frame["layer"].unique().sort().to_list()
    for axes, measure in ((left, "Raw attention"), (right, "Effective attention")):
        axes.set_title(measure)
        axes.set_xlabel("Layer")
        axes.set_xticks(layers[:: max(1, len(layers) // 12)])
        if min(frame["effective"].min() or 0, 0) < 0:  # pyright: ignore[reportOperatorIssue, reportArgumentType] a float
            axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    left.set_ylabel(title, parse_math=False)
    legend = figure.legend(lines, labels, loc="outside lower center", ncols=min(6, len(labels)))
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _maps_sheet(audit: Audit, one: KeptMap) -> Figure:
    titles = ["Raw", "Effective", "Null (no effect)"]
    parts = dict(zip(titles, matrices(audit, one), strict=True))
    title = f"Text {one.text}, {one.kind} layer {one.layer}, head {one.head}: null share {one.null_share:.2f}"
    queries, keys = axis_tokens(audit.tokens.get(one.text, {}), one.kind, one.n_query, one.n_key)
    return maps_sheet(parts, queries, keys, title)


def _telling_maps(audit: Audit) -> Iterator[KeptMap]:
    """Yield, for each text and kind that was kept, the map with the largest null share."""
    best: dict[tuple[int, str], KeptMap] = {}
    for one in kept_maps(audit):
        held = best.get((one.text, one.kind))
        if max(one.n_query, one.n_key) <= _LARGEST_MAP and (held is None or one.null_share > held.null_share):
            best[one.text, one.kind] = one
    yield from best.values()


def _points(figure: Figure, count: int, axis: int) -> float:
    """Return roughly how long an axis of a sheet will be, in points."""
    return max(40.0, 72 * (figure.get_size_inches()[axis] - 1.0)) if count else 40.0
