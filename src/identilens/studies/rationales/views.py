"""Charts of losses of probability."""

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import intervals


def drops(means: pl.DataFrame, title: str) -> AnyChart:
    """Return the mean loss of each explanation with its interval."""
    drawn = means.select("explanation", "mean", "low", "high")
    return intervals(drawn, "explanation", "low", "high", "mean", x_title=title, title=title)
