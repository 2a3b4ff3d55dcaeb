"""How faithfulness and determinacy are drawn."""

import altair as alt
import polars as pl

from identilens.charts.encoding import AnyChart, layered, on_field
from identilens.charts.kit import choose, intervals, scatter


def plane(means: pl.DataFrame) -> AnyChart:
    """Return each explanation by its agreement over alternatives and its NAOPC, with intervals both ways."""
    held = means.drop_nulls("determined")
    ends = ("faithful_low", "faithful_high", "determined_low", "determined_high")
    chart = scatter(
        held, "determined", "faithful", "explanation", size=70, also=ends,
        x_title="Determined: agreement with itself over alternatives", y_title="Faithful: NAOPC",
        color_title="Explanation", title="Faithful by determined",
    )  # fmt: skip
    base = chart.copy(deep=False)
    high = base.mark_rule(opacity=0.6).encode(y=on_field(base.encoding.y, ends[0]), y2=alt.Y2(ends[1]))
    wide = base.mark_rule(opacity=0.6).encode(x=on_field(base.encoding.x, ends[2]), x2=alt.X2(ends[3]))
    return layered([high, wide, chart])


def faithful(means: pl.DataFrame, title: str) -> AnyChart:
    """Return a measure of each explanation with its interval; outcomes and interventions are chosen."""
    chart = intervals(
        means.select("intervention", "outcome", "explanation", "mean", "low", "high"), "explanation", "low", "high",
        "mean", x_title=title, title=title, height=17 * means["explanation"].n_unique() + 10,
    )  # fmt: skip
    return _chosen(_chosen(chart, means, "outcome", "Change of"), means, "intervention", "Removed by")


def determined(means: pl.DataFrame) -> AnyChart:
    """Return the agreement of each explanation with itself, a kind of alternative at a time."""
    title = "Agreement with itself over alternatives"
    chart = intervals(
        means.select("alternative", "explanation", "mean", "low", "high"), "explanation", "low", "high", "mean",
        x_title=title, title=title, height=17 * means["explanation"].n_unique() + 10,
    )  # fmt: skip
    return _chosen(chart, means, "alternative", "Alternatives")


def _chosen(chart: AnyChart, means: pl.DataFrame, column: str, label: str) -> AnyChart:
    values = means[column].unique(maintain_order=True).to_list()
    return choose(chart, column, label, values) if len(values) > 1 else chart
