"""How a structure analysis is drawn: R and its growth, patterns, equivalent weights, representatives, norms."""

from collections.abc import Mapping

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.kit import AnyChart, Charts, Value, bars, choose, lines, rule, strip
from identilens.runs.tables import Tables
from identilens.studies.perturbation_views import norm_charts

_HEAD = ["kind", "layer", "head"]
_GROWTH = {
    "dim_r": "dim R",
    "dim_half": "visible in half of the texts",
    "dim_95": "95 % of the spectrum",
    "energy_95": "95 % of the energy",
}
_SPECTRUM = {
    "visibility": "visible in this share of texts",
    "energy": "share of the values’ energy",
}
_KEPT = {"kept": "entries kept", "emptied": "rows emptied"}
_STABILITY = {
    "to_all": "W to that of all texts",
    "to_next": "W to the next",
    "mean_to_all": "before the cut",
    "random_to_all": "random texts, before the cut",
}
_PAIRS = {
    "overlap": "shared null space",
    "chance": "shared by chance",
    "disagree": "not equivalent under the other text",
    "change_second": "change of the other text’s output",
}


def charts(frames: Tables) -> Charts:
    """Return every chart that is made of tables; those on R as means over heads."""
    charts = subspace(frames) | patterns(frames) | classes(frames) | representatives(frames)
    return charts | norm_charts(frames["perturbations"])


def subspace(frames: Tables, *, each: bool = False) -> Charts:
    """Return how R grows, its spectrum, how visible each position is, and what l leaves.

    Means over heads, and with ``each`` a drop-down that shows any single head.
    """
    n = frames["table"]["length"][0]
    spectrum = frames["spectrum"].with_columns(direction=pl.col("index") + 1)
    growth = _by_head(frames["growth"], "texts", _GROWTH, each)
    directions = _by_head(spectrum, "direction", _SPECTRUM, each)
    positions = _by_head(frames["positions"], "position", {"visibility": "visible"}, each)
    kept = _by_head(frames["kept"].filter(weights="raw"), "threshold", _KEPT, each)
    band, spread = (None, "") if each else (("low", "high"), " (bands: 80 % of heads)")
    charts: Charts = {
        "growth": lines(
            growth,
            "texts",
            "value",
            "measure",
            log_x=True,
            y_domain=(0, 1.04 * n),
            x_title="Texts",
            y_title="Dimension",
            color_title="",
            title="Growth of R with the number of texts",
        ),
        "spectrum": rule(
            _spectra(directions, spread, band),
            y=frames["table"]["mean_rank"].mean() / n,  # pyright: ignore[reportOptionalOperand, reportOperatorIssue] a float column
            label="mean rank of T over n",
        ),
        "positions": lines(
            positions,
            "position",
            "value",
            error=band,
            points=n <= 128 and each,
            y_domain=(0, 1.03),
            y_format=".0%",
            x_title="Position",
            y_title="Visible share of a weight there",
            title=f"How visible each position is{spread}",
        ),
        "kept": lines(
            kept,
            "threshold",
            "value",
            "measure",
            points=False,
            y_domain=(0, 1.02),
            y_format=".0%",
            x_title="Threshold l",
            y_title="Share",
            color_title="",
            title="Entries kept and rows emptied, by l",
        ),
    }
    if not each:
        return charts
    names = growth["heads"].unique(maintain_order=True).to_list()
    return {name: choose(chart, "heads", "Heads", names) for name, chart in charts.items()}


def _spectra(directions: pl.DataFrame, spread: str, band: tuple[str, str] | None) -> AnyChart:
    return lines(
        directions,
        "direction",
        "value",
        "measure",
        error=band,
        points=False,
        y_domain=(0, 1.03),
        x_title="Direction",
        y_title="Eigenvalue",
        color_title="",
        title=f"Spectrum of R{spread}",
    )


def patterns(frames: Tables) -> Charts:
    """Return the scores of every pattern: spread over heads, and head by head."""
    several = frames["table"]["kind"].n_unique() > 1
    label = pl.format("{} {}.{}", *_HEAD) if several else pl.format("{}.{}", "layer", "head")
    drawn = frames["patterns"].select("pattern", "score", "place", "weights", heads=label)
    scores = heat(
        drawn,
        "heads",
        "pattern",
        "score",
        diverging=True,
        domain=(-1, 1),
        numbers=None,
        also=["place"],
        x_title="Layer.head",
        y_title="Pattern",
        color_title="Score",
        title="Score of each pattern for each head",
    )
    spread = strip(
        drawn.select("score", "pattern", "weights"),
        "score",
        "pattern",
        "weights",
        x_title="Score",
        color_title="Weights",
        title="Scores of patterns over heads",
    )
    weights: dict[Value, str] = {"raw": "raw attention", "effective": "effective attention (sizes)"}
    return {"pattern_scores": choose(scores, "weights", "Weights", weights), "patterns": spread}


def classes(frames: Tables) -> Charts:
    """Return null spaces of two texts and negative entries of projections, where there are any."""
    charts: Charts = {}
    pairs = pairs_by_head(frames["pairs"])
    signs = texts_by_head(frames["texts"]).drop_nulls("negative")
    if len(pairs):
        shared = _placed(_long(pairs, _HEAD, {"overlap": "measured", "chance": "by chance"}))
        means = shared.group_by("place", "measure", maintain_order=True).agg(pl.col("value").mean())
        charts["overlap"] = lines(
            means,
            "place",
            "value",
            "measure",
            y_domain=(0, 1.02),
            y_format=".0%",
            x_title="Layer",
            y_title="Share",
            color_title="",
            title="Null space shared by two texts",
        )
        cells = _placed(_long(pairs, _HEAD, _PAIRS))
        each = _cells(
            cells.select("head", "place", "measure", "value"), "Two texts, head by head", "Share"
        )
        charts["overlap_heads"] = choose(each, "measure", "Measure", list(_PAIRS.values()))
    if len(signs):
        placed = _placed(signs.select(*_HEAD, value="negative"))
        charts["negative"] = bars(
            placed.group_by("place", maintain_order=True).agg(pl.col("value").mean()),
            "place",
            "value",
            y_format=".0%",
            x_title="Layer",
            y_title="Share of entries",
            title="Negative entries of the projection",
        )
        charts["negative_heads"] = _cells(
            placed, "Negative entries, head by head", "Share of entries"
        )
    return charts


def representatives(frames: Tables) -> Charts:
    """Return how W changes as clusters grow, and the silhouette of each number of clusters."""
    stability, several = frames["stability"], frames["stability"]["kind"].n_unique() > 1
    means = (
        stability.group_by("kind", "clusters")
        .agg(pl.col(list(_STABILITY)).mean())
        .sort("kind", "clusters")
    )
    drawn = _long(means, ["kind", "clusters"], _STABILITY).drop_nulls("value")
    if several:
        drawn = drawn.with_columns(measure=pl.format("{} ({})", "measure", "kind"))
    charts: Charts = {
        "stability": lines(
            drawn,
            "clusters",
            "value",
            "measure",
            log_x=True,
            x_title="Clusters",
            y_title="Relative distance",
            color_title="",
            title="Change of W as clusters grow",
        )
    }
    scored = frames["clusters"].drop_nulls("silhouette")
    if len(scored):
        charts["silhouette"] = lines(
            scored.select("clusters", "silhouette"),
            "clusters",
            "silhouette",
            log_x=True,
            x_title="Clusters",
            y_title="Mean silhouette",
            title="Number of clusters",
        )
    for count in scored.filter("chosen")["clusters"].head(1):
        charts["silhouette"] = rule(charts["silhouette"], x=count, label="chosen")
    return charts


def pairs_by_head(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the means over pairs of texts whose weights can be moved at all."""
    groups = pairs.filter(pl.col("freedom") > 0).group_by(_HEAD)
    return groups.agg(
        pl.col("overlap", "chance", "change_second", "disagree").mean(), pairs=pl.len()
    ).sort(_HEAD)


def texts_by_head(texts: pl.DataFrame) -> pl.DataFrame:
    """Return each text against R, and Naim & Asher's projection, as means over texts."""
    rounding = pl.col("outside", "outside_half")
    means = pl.col("rank", "ignored", "outside", "outside_half", "negative")
    # Rounding in float64 is shown as the zero that it is.
    shown = texts.with_columns(pl.when(rounding < 1e-9).then(0.0).otherwise(rounding).name.keep())
    return shown.group_by(_HEAD).agg(means.mean(), pl.col("least").min()).sort(_HEAD)


def _by_head(frame: pl.DataFrame, by: str, measures: Mapping[str, str], each: bool) -> pl.DataFrame:
    """Return columns heads, ``by``, measure and value: the mean over heads first, then each head where asked for.

    Means have ``low`` and ``high``, between which 80 % of the heads lie.
    """
    long, value = _long(frame, [*_HEAD, by], measures), pl.col("value")
    groups = long.group_by("measure", by, maintain_order=True)
    mean = groups.agg(value.mean(), low=value.quantile(0.1), high=value.quantile(0.9))
    if not each:
        return mean.select(by, "measure", "value", "low", "high")
    every = pl.lit(f"mean over all {frame.select(_HEAD).n_unique()} heads")
    name = pl.format("{} layer {}, head {}", *_HEAD)
    columns = (by, "measure", "value")
    return pl.concat(
        [mean.select(every.alias("heads"), *columns), long.select(name.alias("heads"), *columns)]
    )


def _long(frame: pl.DataFrame, index: list[str], measures: Mapping[str, str]) -> pl.DataFrame:
    """Return a row for each measure, under the name it is shown by."""
    numbers = frame.select(*index, pl.col(list(measures)).cast(pl.Float64))
    long = numbers.unpivot(list(measures), index=index, variable_name="measure", value_name="value")
    return long.with_columns(pl.col("measure").replace_strict(measures))


def _placed(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with a column ``place``: the layer, named by its kind where there are several."""
    several = frame["kind"].n_unique() > 1
    return frame.with_columns(
        place=pl.format("{} {}", "kind", "layer") if several else pl.col("layer")
    )


def _cells(frame: pl.DataFrame, title: str, value: str) -> AnyChart:
    return heat(
        frame,
        "head",
        "place",
        "value",
        domain=(0, 1),
        x_title="Head",
        y_title="Layer",
        color_title=value,
        title=title,
    )
