"""How contributions are drawn."""

import polars as pl
from polars import selectors

from identilens.charts.cells import heat
from identilens.charts.kit import AnyChart, bars, boxes, choose, choose_present, lines
from identilens.studies.mixing.series import ClassContext

_NEARBY = 20
_PERCENT = ".1~%"
_ROW = 15  # Pixels of a row of cells.


def own_contribution(contributions: pl.DataFrame) -> AnyChart:
    """Return boxes of own contributions by layer."""
    numbers = contributions.select("kind", "layer", "low", "q1", "median", "q3", "high")
    return _by_kind(
        boxes(
            _plain(numbers),
            "layer",
            "Own contribution",
            x_title="Layer",
            y_format=_PERCENT,
            y_domain=(0, _reach(contributions["high"])),
            title="Own contribution by layer",
        ),
        contributions,
    )


def not_largest(contributions: pl.DataFrame) -> AnyChart:
    """Return the share of tokens that are not their own largest contributor, by layer."""
    return _by_kind(
        bars(
            _plain(contributions.select("kind", "layer", "not_largest", "tokens")),
            "layer",
            "not_largest",
            x_title="Layer",
            y_title="Share of tokens",
            y_format=_PERCENT,
            y_domain=(0, _reach(contributions["not_largest"])),
            also=("tokens",),
            title="Tokens that are not their own largest contributor",
        ),
        contributions,
    )


def neighbours(groups: pl.DataFrame) -> AnyChart:
    """Return in which layer neighbours at each distance contribute most."""
    return _by_kind(
        lines(
            _plain(groups),
            "layer",
            "share",
            "group",
            x_title="Layer",
            y_title="Relative contribution",
            color_title="Neighbour",
            x_format="d",
            y_format=_PERCENT,
            also=("mean",),
            title="In which layer neighbours contribute most",
        ),
        groups,
    )


def relative_positions(positions: pl.DataFrame) -> AnyChart:
    """Return context by relative position at the first, middle and last layer."""
    # The own token is no context: the lines do not cross it.
    gap = (
        positions.select("kind", "layer")
        .unique(maintain_order=True)
        .with_columns(offset=pl.lit(0, pl.Int32))
    )
    rows = pl.concat(
        [positions.select("kind", "layer", "offset", "share", "pairs"), gap], how="diagonal_relaxed"
    )
    near = pl.col("offset").abs() <= _NEARBY
    chart: AnyChart = lines(
        _plain(rows.with_columns(near=near)),
        "offset",
        "share",
        "layer",
        x_title="Relative position of the input token",
        y_title="Share of all context",
        color_title="Layer",
        y_format=_PERCENT,
        also=("pairs",),
        title="Context by relative position",
    )
    if not rows.select(near.all()).item():
        chart = choose(chart, "near", "Positions", {True: f"up to {_NEARBY}", None: "all"})
    return _by_kind(chart, positions)


def class_token(context: ClassContext) -> AnyChart:
    """Return what the class token takes from each position, counted from a token."""
    centre = "itself" if context.centre == context.token else f"the first {context.centre}"
    return lines(
        _plain(context.frame.drop("total")),
        "offset",
        "share",
        "layer",
        points=False,
        x_title=f"Position, counted from {context.centre}",
        y_title="Share of its context",
        color_title="Layer",
        y_format=_PERCENT,
        also=("texts",),
        title=f"Context of {context.token}, counted from {centre}",
    )


def tracked_token(rows: pl.DataFrame, text: int) -> AnyChart:
    """Return what a hidden token takes from every input token, layer by layer."""
    context = rows.filter(~pl.col("own"))
    # The own token would take all the colour.
    top = max((context if len(context) else rows)["contribution"].to_list())
    inputs = rows["position"].n_unique()
    chart = heat(
        rows.select("state", "layer", "input", "contribution", "standard_error"),
        "layer",
        "input",
        "contribution",
        domain=(0.0, top or 1.0),
        numbers=".0%",
        height=_ROW * max(6, inputs),
        also=("standard_error",),
        x_title="Layer",
        y_title="Input token",
        color_title="Contribution (colours up to the largest context)",
        title=f"One token through the layers (text {text})",
    )
    return choose(
        chart, "state", "Hidden token", rows["state"].unique(maintain_order=True).to_list()
    )


def own_share(medians: pl.DataFrame) -> AnyChart:
    """Return the median own share in contributions and in rollouts, by layer."""
    return _by_kind(
        lines(
            _plain(medians),
            "layer",
            "median",
            "measure",
            dash="measure",
            x_title="Layer",
            y_title="Median own share",
            x_format="d",
            y_format=_PERCENT,
            title="Median own share",
        ),
        medians,
    )


def rollout_correlation(correlation: pl.DataFrame) -> AnyChart:
    """Return how well rollouts agree with contributions, by layer."""
    long = correlation.unpivot(
        ["pearson", "spearman"], index=["kind", "layer", "rollout", "pairs"], variable_name="method"
    )
    chart: AnyChart = lines(
        _plain(long),
        "layer",
        "value",
        "rollout",
        dash="rollout",
        x_title="Layer",
        y_title="Correlation",
        x_format="d",
        title="Correlation of rollouts with contributions",
    )
    chart = choose(
        chart, "method", "Correlation", {"pearson": "Pearson", "spearman": "Spearman (ranks)"}
    )
    chart = choose(
        chart, "pairs", "Pairs", {"context": "context only", "all": "all, own token included"}
    )
    return _by_kind(chart, correlation)


def part_of_speech(speech: pl.DataFrame) -> AnyChart:
    """Return boxes of own contributions by part of speech, a layer at a time."""
    label = pl.format("{} ({})", "tag", "tokens").alias("label")
    chart = boxes(
        speech.select("layer", label, "low", "q1", "median", "q3", "high"),
        "label",
        "Own contribution",
        lying=True,
        y_title="Part of speech",
        x_format=_PERCENT,
        x_domain=(0, _reach(speech["high"])),
        title="Own contribution by part of speech",
    )
    layers = speech["layer"].unique().sort(descending=True).to_list()
    return choose(chart, "layer", "Layer", layers)


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(selectors.enum().cast(pl.String))


def _reach(ends: pl.Series) -> float:
    return 1.05 * (max(ends.to_list()) or 1.0)


def _by_kind(chart: AnyChart, frame: pl.DataFrame) -> AnyChart:
    return choose_present(chart, frame, "kind", "Hidden states")
