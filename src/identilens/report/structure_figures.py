"""The figures of a structure analysis for papers, drawn by matplotlib."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

from identilens.measures.structure import structure_weights
from identilens.report.paper import MARKERS, SERIES, new_sheet, save_sheets
from identilens.results.structure import Structure

_GROWTH = {
    "dim_r": "dim R",
    "dim_half": "visible in half of the texts",
    "dim_95": "95 % of the spectrum",
    "energy_95": "95 % of the energy",
}
_STABILITY = {
    "to_all": "W to that of all texts",
    "to_next": "W to the next",
    "mean_to_all": "before the cut",
    "random_to_all": "random texts, before the cut",
}
_NORMS = {
    "structure": "‖·‖$_S$",
    "structure_effective": "‖·‖$_S$, eff.",
    "one": "1-norm",
    "infinity": "∞-norm",
    "frobenius": "Frobenius",
    "output": "output",
}


def save_structure_figures(
    result: Structure, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """Write the figures of a structure analysis and return their paths.

    ``structures_<kind>_raw`` and ``_effective`` (W of every head), ``subspace`` (growth and spectrum of R),
    ``patterns``, ``stability``, ``classes`` and, where weights were perturbed, ``norms``.

    Args:
        result: The result.
        folder: Where to write; made where missing.
        formats: Any of png, svg, pdf.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder cannot be written.
    """
    return save_sheets(_figures(result), folder, formats)


def _figures(result: Structure) -> Iterator[tuple[str, Figure]]:
    for (kind,), heads in result.table.group_by("kind", maintain_order=True):
        for name in ("raw", "effective"):
            yield f"structures_{kind}_{name}", _maps_sheet(result, heads, str(kind), name)
    yield "subspace", _subspace_sheet(result)
    yield "patterns", _patterns_sheet(result)
    yield "stability", _stability_sheet(result)
    yield "classes", _classes_sheet(result)
    if len(result.perturbations):
        yield "norms", _norms_sheet(result)


def _maps_sheet(result: Structure, heads: pl.DataFrame, kind: str, name: str) -> Figure:
    layers = heads["layer"].unique().sort().to_list()
    most = int(heads["head"].max()) + 1  # pyright: ignore[reportArgumentType, reportOptionalOperand] an integer column
    figure = new_sheet(0.4 + 0.78 * most, 0.5 + 0.86 * len(layers))
    panels = figure.subplots(len(layers), most, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for row in heads.iter_rows(named=True):
        axes = panels[layers.index(row["layer"]), row["head"]]
        mean = result.mean_weights(row["layer"], row["head"], kind, name)
        W = structure_weights(mean, result.threshold, penalty=float(result.provenance["settings"]["penalty"]))
        axes.imshow(np.sqrt(W.numpy()), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        pattern = row["pattern" if name == "raw" else "effective_pattern"]
        axes.set_title(f"{row['layer']}.{row['head']} {pattern}", fontsize=5.5, pad=1.5)
    figure.suptitle(f"W of each head ({name} attention, l = {result.threshold:.4g}, shade: root of the weight)")
    return figure


def _subspace_sheet(result: Structure) -> Figure:
    figure = new_sheet(9.4, 2.7)
    left, right, last = figure.subplots(1, 3)
    n = int(result.table["length"][0])
    means = result.growth.group_by("texts").agg(pl.col(list(_GROWTH)).mean()).sort("texts")
    for place, (column, label) in enumerate(_GROWTH.items()):
        _line(left, means["texts"], means[column], label, place)
    left.set(
        xscale="log", xlabel="Texts", ylabel="Dimension (mean over heads)", ylim=(0, 1.04 * n), title="Growth of R"
    )
    _plain_ticks(left, means["texts"].to_list())
    left.legend()
    spectrum = result.spectrum.with_columns(direction=pl.col("index") + 1)
    for place, (column, label) in enumerate({"visibility": "share of texts", "energy": "share of energy"}.items()):
        _band(right, spectrum, "direction", column, label, place)
    _band(last, result.visibility_by_position(), "position", "visibility", None, 0)
    last.set(title="Visibility of each position", xlabel="Position", ylabel="Share of a weight there", ylim=(0, 1.03))
    right.axhline(float(result.table["mean_rank"].mean()) / n, color=SERIES[5], linestyle=":", linewidth=1)  # pyright: ignore[reportArgumentType] a float column
    right.set(title="Spectrum (bands: 80 % of heads)", xlabel="Direction", ylabel="Eigenvalue", ylim=(0, 1.03))
    right.legend()
    return figure


def _band(axes: Axes, rows: pl.DataFrame, by: str, column: str, label: str | None, place: int) -> None:
    """Draw the mean over heads, with a band that holds 80 % of them."""
    value = pl.col(column)
    spread = rows.group_by(by).agg(
        value.mean().alias("mean"), value.quantile(0.1).alias("low"), value.quantile(0.9).alias("high")
    ).sort(by)  # fmt: skip
    at, low, high = (spread[name].to_numpy() for name in (by, "low", "high"))
    axes.plot(at, spread["mean"].to_numpy(), color=SERIES[place], label=label)
    axes.fill_between(at, low, high, color=SERIES[place], alpha=0.2, linewidth=0)


def _patterns_sheet(result: Structure) -> Figure:
    figure = new_sheet(6.6, 2.4)
    panels = figure.subplots(1, 2, sharex=True)
    for axes, name in zip(panels, ("raw", "effective"), strict=True):
        rows = result.patterns.filter(pl.col("weights") == name)
        order = rows["pattern"].unique(maintain_order=True).to_list()
        scores = [rows.filter(pl.col("pattern") == pattern)["score"].to_numpy() for pattern in order]
        for place, values in enumerate(scores):
            jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(values))
            axes.scatter(values, place + jitter, s=5, color=SERIES[place], linewidths=0, alpha=0.7)
        axes.set_yticks(range(len(order)), order)
        axes.invert_yaxis()
        axes.set(title=f"{name.capitalize()} attention", xlabel="Score", xlim=(-0.02, 1.02))
    return figure


def _stability_sheet(result: Structure) -> Figure:
    figure = new_sheet(6.6, 2.5)
    left, right = figure.subplots(1, 2)
    means = result.stability.group_by("clusters").agg(pl.col(list(_STABILITY)).mean()).sort("clusters")
    for place, (column, label) in enumerate(_STABILITY.items()):
        rows = means.drop_nulls(column)
        _line(left, rows["clusters"], rows[column], label, place)
    left.set(xscale="log", xlabel="Clusters", ylabel="Relative distance", title="Stability of W")
    left.set_ylim(0, 1.5 * left.get_ylim()[1])
    left.legend()
    scored = result.clusters.filter(pl.col("silhouette").is_finite())
    _line(right, scored["clusters"], scored["silhouette"], None, 2)
    chosen = scored.filter(pl.col("chosen"))
    right.scatter(
        chosen["clusters"], chosen["silhouette"], s=60, facecolors="none", edgecolors=SERIES[1], label="chosen"
    )
    right.set(xscale="log", xlabel="Clusters", ylabel="Mean silhouette", title="Number of clusters")
    right.legend()
    for axes in (left, right):
        _plain_ticks(axes, means["clusters"].to_list())
    return figure


def _classes_sheet(result: Structure) -> Figure:
    figure = new_sheet(6.6, 2.5)
    left, right = figure.subplots(1, 2)
    able = result.pairs.filter(pl.col("freedom") > 0)
    for place, (column, label) in enumerate({"overlap": "measured", "chance": "by chance"}.items()):
        means = able.group_by("kind", "layer").agg(pl.col(column).mean()).sort("kind", "layer")
        _line(left, pl.Series(range(len(means))), means[column], label, place)
    left.set(title="Null space shared by two texts", ylabel="Share", ylim=(0, 1.02))
    signs = result.texts.drop_nulls("negative").group_by("kind", "layer").agg(pl.col("negative").mean())
    signs = signs.sort("kind", "layer")
    right.bar(range(len(signs)), signs["negative"].to_numpy(), color=SERIES[1])
    right.set(title="Negative entries of the projection", ylabel="Share of entries", ylim=(0, None))
    for axes, count in ((left, able.select("kind", "layer").n_unique()), (right, len(signs))):
        axes.set_xticks(range(count))
        axes.set_xlabel("Layer")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    if len(able):
        left.legend()
    return figure


def _norms_sheet(result: Structure) -> Figure:
    figure = new_sheet(6.6, 2.5)
    left, right = figure.subplots(1, 2)
    found = result.correlations()
    places = np.arange(len(found))
    left.bar(places - 0.2, found["within_spearman"].to_numpy(), 0.38, color=SERIES[0], label="within heads")
    left.bar(places + 0.2, found["pooled_spearman"].to_numpy(), 0.38, color=SERIES[4], label="pooled")
    left.set_xticks(places, [_NORMS[name] for name in found["norm"]])
    left.set(title="Follows the final hidden state", ylabel="Spearman correlation", ylim=(None, 1.02))
    left.legend()
    kinds = result.by_perturbation().drop_nulls("share")
    for place, ((name,), rows) in enumerate(kinds.group_by("perturbation", maintain_order=True)):
        _line(right, rows["share"], rows["hidden"], str(name), place)
    right.set(
        title="Perturbations of one Frobenius norm", xlabel="Size", ylabel="Change of final state", ylim=(0, None)
    )
    right.legend()
    return figure


def _line(axes: Axes, x: pl.Series, y: pl.Series, label: str | None, place: int) -> None:
    axes.plot(x.to_numpy(), y.to_numpy(), color=SERIES[place], marker=MARKERS[place], markersize=3.5, label=label)


def _plain_ticks(axes: Axes, values: Sequence[int]) -> None:
    """Label a logarithmic axis with some of the numbers that are on it."""
    shown = [value for value in values if value & (value - 1) == 0] or list(values)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
