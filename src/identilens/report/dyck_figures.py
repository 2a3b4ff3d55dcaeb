"""The figures of trained Dyck transformers for papers, drawn by matplotlib."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy import ndarray

from identilens.report.labels import file_names
from identilens.report.paper import MARKERS, SERIES, drawable, new_sheet, save_sheets
from identilens.results.dyck import DyckRuns

_SHOWN = 8
"""Seeds in a gallery on paper."""

_LEGEND: dict[str, Any] = {"loc": "outside lower center", "ncols": 2}


def save_dyck_figures(
    result: DyckRuns, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """Write the figures of trained Dyck transformers and return their paths.

    ``gallery_<setting>`` (Wen et al. 2023, Fig. 1, 2, 7 to 9, 11), ``variation``, ``generalisation``, ``looks_and_use``
    (Fig. 4 to 6) and, for models behind a minimal first layer, ``violation`` (Fig. 3, 10).

    Args:
        result: The result.
        folder: Where to write; made where missing. Files of the same names are replaced.
        formats: Any of png, svg, pdf. Equal results give equal files.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(((name, draw()) for name, draw in dyck_sheets(result).items()), folder, formats)


def dyck_sheets(result: DyckRuns) -> dict[str, Callable[[], Figure]]:
    """Return every figure of a result by name, to be drawn when it is wanted."""
    names = file_names(result.settings)
    sheets: dict[str, Callable[[], Figure]] = {
        f"gallery_{names[setting]}": lambda setting=setting: gallery_sheet(result, setting)
        for setting in result.settings
    }
    if len(result.variation):
        sheets["variation"] = lambda: variation_sheet(result)
    sheets["generalisation"] = lambda: generalisation_sheet(result)
    sheets["looks_and_use"] = lambda: use_sheet(result)
    if result.table["violation"].drop_nulls().len():
        sheets["violation"] = lambda: violation_sheet(result)
    return sheets


def gallery_sheet(result: DyckRuns, setting: str, shown: int = _SHOWN) -> Figure:
    """Return the attention of the first seeds of a setting on the probe prefix, a row for each layer and head."""
    own = result.patterns.filter(pl.col("setting") == setting)
    seeds = own["seed"].unique(maintain_order=True).to_list()[:shown]
    heads = own.select("layer", "head").unique(maintain_order=True).rows()
    tokens = [_short(token) for token in own["tokens"][0].to_list()]
    side = 1.45 if len(tokens) < 30 else 1.9
    figure = new_sheet(side * len(seeds) + 0.9, side * len(heads) + 0.75, "compressed")
    panels = figure.subplots(len(heads), len(seeds), squeeze=False, sharex=True, sharey=True)
    last = None
    for row, (layer, head) in enumerate(heads):
        for column, seed in enumerate(seeds):
            axes, weights = panels[row, column], pattern(own, seed, layer, head)
            last = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axes.tick_params(length=0)
            step = -(-len(tokens) // 17)
            places = range(0, len(tokens), step)
            labels = [drawable(tokens[place]) for place in places]
            axes.set_xticks(places, labels, fontsize=4.5, parse_math=False)
            axes.set_yticks(places, labels, fontsize=4.5, parse_math=False)
            if row == 0:
                axes.set_title(f"seed {seed}", fontsize=7)
        panels[row, 0].set_ylabel(f"layer {layer}" + (f", head {head}" if _many(heads) else ""), fontsize=7)
    if last is not None:
        figure.colorbar(last, ax=panels, fraction=0.02, pad=0.01, label="Attention")
    figure.suptitle(drawable(setting), fontsize=9)
    return figure


def variation_sheet(result: DyckRuns) -> Figure:
    """Return the attention variation of every setting, layer and head beside that of random patterns."""
    rows = result.variation.filter(~pl.col("with_start"))
    labels = [
        f"{row['setting']}, layer {row['layer']}" + (f", head {row['head']}" if rows["head"].max() else "")
        for row in rows.iter_rows(named=True)
    ]
    figure = new_sheet(5.6, 0.9 + 0.24 * len(rows))
    axes = figure.add_subplot()
    places = np.arange(len(rows))[::-1]
    errors = rows["error"].fill_nan(0).to_numpy()
    axes.errorbar(rows["value"], places, xerr=errors, fmt="o", color=SERIES[0], capsize=2, label="between seeds")
    for name, mark, color, label in (
        ("even_on_simplex", "|", SERIES[1], "rows even on the simplex"),
        ("softmax_of_normals", "x", SERIES[3], "softmax of normal logits"),
    ):
        axes.plot(rows[name], places, mark, color=color, markersize=7, label=label)
    axes.set_yticks(places, [drawable(label) for label in labels], parse_math=False)
    axes.set(xlabel="Attention variation, start token left out", xlim=(0, None))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def generalisation_sheet(result: DyckRuns) -> Figure:
    """Return each seed's accuracy on long prefixes, by both measures."""
    return _strips(
        result,
        {"long_argmax": "last bracket, argmax", "long_threshold": "right closing bracket above 0.8"},
        "Accuracy on long prefixes",
    )


def violation_sheet(result: DyckRuns) -> Figure:
    """Return accuracy on long prefixes against the balance violation, a point a seed (Wen et al. 2023, Fig. 3, 10)."""
    figure = new_sheet(6.4, 3.1)
    for axes, (name, label) in zip(
        figure.subplots(1, 2, sharex=True),
        (("long_argmax", "Accuracy, argmax"), ("long_threshold", "Accuracy, threshold")),
        strict=True,
    ):
        for place, (setting, rows) in enumerate(_with_violation(result)):
            axes.plot(
                rows["violation"],
                rows[name],
                MARKERS[place % len(MARKERS)],
                color=SERIES[place % len(SERIES)],
                markersize=3.5,
                alpha=0.8,
                label=drawable(setting),
            )
        axes.set(xscale="log", xlabel="Balance violation", ylabel=label)
        # Few labels, as numbers: violations span about one decade, where powers of ten would overlap.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, **_LEGEND)
    return figure


def use_sheet(result: DyckRuns) -> Figure:
    """Return, for each head, what any change of its attention costs against how stack-like it looks (Fig. 4 to 6)."""
    figure = new_sheet(4.8, 3.4)
    axes = figure.add_subplot()
    for place, (setting, rows) in enumerate(result.heads.group_by("setting", maintain_order=True)):
        axes.plot(
            rows["stack_weight"],
            100 * rows["largest_fall"],
            MARKERS[place % len(MARKERS)],
            color=SERIES[place % len(SERIES)],
            markersize=3.5,
            alpha=0.8,
            label=drawable(str(setting[0])),
        )
    axes.axvline(0.5, color="0.5", linestyle=":", linewidth=0.8)
    axes.axhline(1.0, color="0.5", linestyle=":", linewidth=0.8)
    axes.set(xlabel="Attention on the last unmatched bracket", ylabel="Largest fall of accuracy (points)", xlim=(0, 1))
    figure.legend(**_LEGEND)
    return figure


def pattern(patterns: pl.DataFrame, seed: int, layer: int, head: int) -> Float[ndarray, "query key"]:
    """Return one attention pattern of a setting's patterns."""
    row = patterns.filter((pl.col("seed") == seed) & (pl.col("layer") == layer) & (pl.col("head") == head))
    return np.asarray(row["weights"][0].to_list(), dtype=np.float32).reshape(row["size"][0], -1)


def _strips(result: DyckRuns, measures: dict[str, str], label: str) -> Figure:
    settings = result.settings
    figure = new_sheet(5.6, 1.0 + 0.34 * len(settings))
    axes = figure.add_subplot()
    for number, (name, title) in enumerate(measures.items()):
        for place, setting in enumerate(settings):
            values = result.table.filter(pl.col("setting") == setting)[name]
            heights = np.full(len(values), len(settings) - place - 0.14 + 0.28 * number)
            axes.plot(
                values,
                heights,
                MARKERS[number],
                color=SERIES[number],
                markersize=3,
                alpha=0.7,
                label=title if place == 0 else None,
            )
    axes.set_yticks(range(len(settings), 0, -1), [drawable(setting) for setting in settings], parse_math=False)
    axes.set(xlabel=label, ylim=(0.4, len(settings) + 0.6))
    figure.legend(**_LEGEND)
    return figure


def _with_violation(result: DyckRuns) -> Iterator[tuple[str, pl.DataFrame]]:
    for (setting,), rows in result.table.group_by(["setting"], maintain_order=True):
        kept = rows.filter(pl.col("violation").is_not_null())
        if len(kept):
            yield str(setting), kept


def _many(heads: Sequence[tuple[int, int]]) -> bool:
    return any(head for _, head in heads)


def _short(token: str) -> str:
    return "S" if token == "<start>" else token
