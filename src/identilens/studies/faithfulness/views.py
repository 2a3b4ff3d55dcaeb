"""Charts of faithfulness and determinacy."""

from typing import Any

import altair as alt
import polars as pl

from identilens.charts.encoding import AnyChart, on_field
from identilens.charts.kit import choose, intervals, scatter


def plane(means: pl.DataFrame) -> AnyChart:
    """Return each explanation by its agreement over alternatives and its NAOPC, with intervals both ways."""
    held = means.drop_nulls("stable")
    ends = ("faithful_low", "faithful_high", "stable_low", "stable_high")
    chart: Any = scatter(
        held,
        "stable",
        "faithful",
        "explanation",
        size=70,
        span=ends[:2],
        also=ends,
        x_title="Stable: agreement with itself over alternatives",
        y_title="Faithful: NAOPC",
        color_title="Explanation",
        title="Faithful by stable",
    )
    wide = chart.layer[0].copy()
    wide.encoding.y, wide.encoding.y2 = on_field(wide.encoding.y, "faithful"), alt.Undefined
    chart.layer = [wide.encode(x=on_field(wide.encoding.x, ends[2]), x2=ends[3]), *chart.layer]
    return chart


def faithful(means: pl.DataFrame, title: str) -> AnyChart:
    """Return a measure of each explanation with its interval; outcomes and interventions are chosen."""
    chart = intervals(
        means.select("intervention", "outcome", "explanation", "mean", "low", "high"),
        "explanation",
        "low",
        "high",
        "mean",
        x_title=title,
        title=title,
        height=17 * means["explanation"].n_unique() + 10,
    )
    return _chosen(
        _chosen(chart, means, "outcome", "Change of"), means, "intervention", "Removed by"
    )


def stable(means: pl.DataFrame) -> AnyChart:
    """Return the agreement of each explanation with itself, a kind of alternative at a time."""
    title = "Agreement with itself over alternatives"
    chart = intervals(
        means.select("alternative", "explanation", "mean", "low", "high"),
        "explanation",
        "low",
        "high",
        "mean",
        x_title=title,
        title=title,
        height=17 * means["explanation"].n_unique() + 10,
    )
    return _chosen(chart, means, "alternative", "Alternatives")


def _chosen(chart: AnyChart, means: pl.DataFrame, column: str, label: str) -> AnyChart:
    values = means[column].unique(maintain_order=True).to_list()
    return choose(chart, column, label, values) if len(values) > 1 else chart
