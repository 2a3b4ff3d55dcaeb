"""The figures of a mixing analysis for papers, drawn by matplotlib."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from identilens.measures.mixing import track_token
from identilens.report.labels import file_names, shortened, visible_text
from identilens.report.mixing_series import MixingSeries, locate, mixing_series, telling_tokens
from identilens.report.paper import MARKERS, SERIES, drawable, new_sheet, save_sheets
from identilens.results import Mixing

_NEARBY = 20
_MOST_TOKENS = 200


def save_mixing_figures(
    mixing: Mixing, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf"), *, track: str | None = None
) -> list[Path]:
    """Write the figures of a mixing analysis and return their paths.

    ``own_contribution`` (Brunner et al. 2020, Fig. 3), ``context`` (Fig. 4), ``class_token`` (Fig. 18),
    ``token_text<t>_<position>_<token>`` (Fig. 19–25), ``part_of_speech_layer<l>`` (Fig. 26–37, with tags) and
    ``rollout``. With several kinds of hidden states each name ends in the kind.

    Args:
        mixing: The result.
        folder: Where to write; made where missing. Files of the same names are replaced.
        formats: Any of png, svg, pdf. Equal results give equal files.
        track: The token to draw through the layers. When not given, of the first text: the class token, and the
            words that keep least and most of themselves at the last layer.

    Raises:
        InputError: For a format that is not supported, or a token that does not occur.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(_figures(mixing, track), folder, formats)


def _figures(mixing: Mixing, track: str | None) -> Iterator[tuple[str, Figure]]:
    series = mixing_series(mixing)
    for kind in series.kinds:
        end = f"_{kind}" if len(series.kinds) > 1 else ""
        yield f"own_contribution{end}", _own_sheet(_of(series.own, kind))
        if len(_of(series.positions, kind)):
            yield f"context{end}", _context_sheet(_of(series.neighbours, kind), _of(series.positions, kind))
        if series.speech is not None:
            speech = _of(series.speech, kind)
            reach = float(speech["high"].max())  # pyright: ignore[reportArgumentType] a float
            for (layer,), rows in speech.group_by("layer", maintain_order=True):
                yield f"part_of_speech_layer{layer}{end}", _speech_sheet(rows, f"Layer {layer}", reach)
        if len(series.correlation):
            yield f"rollout{end}", _rollout_sheet(series, kind)
    if series.class_context:
        yield "class_token", _class_sheet(series)
    text, position = (0, None) if track is None else locate(mixing, track)
    positions = telling_tokens(mixing, text) if position is None else [position]
    names = {place: mixing.names(text, mixing.kinds[0])[place] for place in positions}
    parts = file_names([f"{place} {name}" for place, name in names.items()])
    for (place, name), part in zip(names.items(), parts.values(), strict=True):
        yield f"token_text{text}_{part}", _token_sheet(mixing, text, place, name)


def _of(frame: pl.DataFrame, kind: str) -> pl.DataFrame:
    return frame.filter(pl.col("kind") == kind)


def _own_sheet(own: pl.DataFrame) -> Figure:
    figure = new_sheet(6.6, 2.7)
    left, right = figure.subplots(1, 2)
    layers = own["layer"].to_list()
    _draw_boxes(left, own, layers, SERIES[0], "vertical")
    if len(layers) <= 12:
        for row in own.iter_rows(named=True):
            left.annotate(
                f"{100 * row['median']:.0f}",
                (row["layer"], row["high"]),
                (0, 3),
                textcoords="offset points",
                ha="center",
            )
    left.set(title="Own contribution (median in %)", ylabel="Contribution", ylim=(0, None))
    bars = right.bar(layers, own["not_largest"].to_numpy(), color=SERIES[1])
    if len(layers) <= 12:
        right.bar_label(bars, [f"{100 * value:.1f}" for value in own["not_largest"]], padding=1, fontsize=6.5)
    right.set(title="Not their own largest contributor", ylabel="Share of tokens", ylim=(0, None))
    right.margins(y=0.12)
    for axes in (left, right):
        _layer_ticks(axes, layers)
        _percent(axes)
    return figure


def _context_sheet(neighbours: pl.DataFrame, positions: pl.DataFrame) -> Figure:
    figure = new_sheet(6.6, 2.9)
    left, right = figure.subplots(1, 2)
    for place, ((group,), rows) in enumerate(neighbours.group_by("group", maintain_order=True)):
        _line(left, rows["layer"], rows["share"], str(group), place)
    _layer_ticks(left, neighbours["layer"].unique().sort().to_list())
    left.set(title="Neighbours by distance, over layers", ylabel="Relative contribution", ylim=(0, None))
    left.legend(ncols=2)
    for place, ((layer,), rows) in enumerate(positions.group_by("layer", maintain_order=True)):
        near = rows.filter(pl.col("offset").abs() <= _NEARBY)
        before, after = (near.filter(pl.col("offset") < 0), near.filter(pl.col("offset") > 0))
        # The own token is no context: the line does not cross it.
        for part, label in ((before, f"layer {layer}"), (after, None if len(before) else f"layer {layer}")):
            _line(right, part["offset"], part["share"], label, place, size=2.0)
    right.set(
        title="Context by relative position", xlabel="Relative position", ylabel="Share of context", ylim=(0, None)
    )
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend()
    for axes in (left, right):
        _percent(axes)
    return figure


def _class_sheet(series: MixingSeries) -> Figure:
    views = series.class_context
    figure = new_sheet(3.4 * len(views), 2.6)
    panels = figure.subplots(1, len(views), squeeze=False)[0]
    for axes, view in zip(panels, views, strict=True):
        for place, ((layer,), rows) in enumerate(view.frame.group_by("layer", maintain_order=True)):
            axes.plot(rows["offset"], rows["share"], color=SERIES[place], label=f"layer {layer}", linewidth=1)
        centre = drawable(visible_text(view.centre))
        axes.set_title(f"Context of {drawable(visible_text(view.token))}", parse_math=False)
        axes.set_xlabel(
            f"Position, counted from {'the first ' if view.centre != view.token else ''}{centre}", parse_math=False
        )
        axes.set(ylabel="Share of its context", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        _percent(axes)
    return figure


def _speech_sheet(rows: pl.DataFrame, title: str, reach: float) -> Figure:
    figure = new_sheet(4.4, 0.9 + 0.16 * len(rows))
    axes = figure.add_subplot()
    places = list(range(len(rows)))
    _draw_boxes(axes, rows, places, SERIES[2], "horizontal")
    labels = [
        f"{drawable(shortened(visible_text(tag), 16))} ({count})"
        for tag, count in rows.select("tag", "tokens").iter_rows()
    ]
    axes.set_yticks(places, labels, parse_math=False, fontsize=6.5)
    axes.set(title=title, xlabel="Own contribution", xlim=(0, 1.03 * reach), ylim=(len(rows) - 0.4, -0.6))
    _percent(axes, "x")
    return figure


def _rollout_sheet(series: MixingSeries, kind: str) -> Figure:
    figure = new_sheet(6.6, 2.7)
    left, right = figure.subplots(1, 2)
    names = {"contribution": "contributions", "raw": "raw rollout", "effective": "effective rollout"}
    medians = _of(series.own_medians, kind)
    for place, (measure, name) in enumerate(names.items()):
        rows = medians.filter(pl.col("measure") == measure)
        _line(left, rows["layer"], rows["median"], name, place)
    _percent(left)
    left.set(title="Median own share", ylabel="Own share", ylim=(0, None))
    context = _of(series.correlation, kind).filter(pl.col("pairs") == "context")
    for place, (measure, name) in enumerate(names.items()):
        rows = context.filter(pl.col("rollout") == measure)
        if len(rows):
            _line(right, rows["layer"], rows["pearson"], name, place)
    if len(context):
        right.legend()
    right.set(title="Correlation with contributions (context)", ylabel="Pearson correlation")
    right.set_ylim(min(0.0, right.get_ylim()[0]), 1.03)
    left.legend()
    for axes in (left, right):
        _layer_ticks(axes, medians["layer"].unique().sort().to_list())
    return figure


def _token_sheet(mixing: Mixing, text: int, position: int, name: str) -> Figure:
    rows = track_token(mixing.table, mixing.tokens, position, text).filter(pl.col("position") < _MOST_TOKENS)
    layers = rows["layer"].unique().sort().to_list()
    shares = rows["contribution"].to_numpy().reshape(len(layers), -1)
    tokens = rows["token"].to_list()[: shares.shape[1]]
    figure = new_sheet(min(14.0, max(3.0, 1.4 + 0.13 * len(tokens))), 1.3 + 0.15 * len(layers))
    axes = figure.add_subplot()
    # The own token would take all the colour.
    context = np.delete(shares, position, axis=1) if mixing.kinds[0] != "cross" and position < len(tokens) else shares
    top = float(context.max()) if context.size else 1.0
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=top or 1.0, aspect="auto", interpolation="nearest")
    labels = [drawable(shortened(visible_text(token), 14)) for token in tokens]
    axes.set_xticks(range(len(tokens)), labels, rotation=90, parse_math=False, fontsize=6.5)
    axes.set_yticks(range(len(layers)), list(map(str, layers)))
    axes.set_ylabel("Layer")
    axes.set_title(f"{drawable(visible_text(name))} (text {text}, position {position})", parse_math=False)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, extend="max", format=PercentFormatter(1, 0))
    bar.set_label("Contribution")
    return figure


def _draw_boxes(
    axes: Axes, rows: pl.DataFrame, places: list[int], color: str, orientation: Literal["vertical", "horizontal"]
) -> None:
    names = {"whislo": "low", "q1": "q1", "med": "median", "q3": "q3", "whishi": "high"}
    line = {"color": color, "linewidth": 0.9}
    axes.bxp(
        [{name: row[column] for name, column in names.items()} for row in rows.iter_rows(named=True)],
        positions=places,
        orientation=orientation,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": f"{color}55", "edgecolor": color, "linewidth": 0.9},
        medianprops={"color": color, "linewidth": 1.6},
        whiskerprops=line,
        capprops=line,
    )


def _line(axes: Axes, x: pl.Series, y: pl.Series, label: str | None, place: int, size: float = 3.5) -> None:
    style = {"color": SERIES[place % len(SERIES)], "marker": MARKERS[place % len(MARKERS)], "markersize": size}
    # Where both rollouts are equal, the one below shows between the dashes.
    axes.plot(x.to_numpy(), y.to_numpy(), label=label, linestyle="--" if label == "effective rollout" else "-", **style)


def _layer_ticks(axes: Axes, layers: list[int]) -> None:
    shown = layers[:: max(1, len(layers) // 12)]
    axes.set_xticks(shown, list(map(str, shown)))
    axes.set_xlabel("Layer")


def _percent(axes: Axes, axis: str = "y") -> None:
    getattr(axes, f"{axis}axis").set_major_formatter(PercentFormatter(1, None))
