"""Charts of the accuracies of a sweep."""

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines

NAMES = {"concat": "Con", "add": "Add"}
"""Kinds of heads as the paper calls them."""


def accuracy(cells: pl.DataFrame, task: str) -> AnyChart:
    """Return a task's accuracy against d_k for both kinds of heads, measured beside published."""
    named = cells.select(
        "d_k",
        pl.col("heads").cast(pl.String).replace(NAMES),
        "standard_error",
        "published",
        measured="test_accuracy",
    )
    index = ["d_k", "heads", "standard_error"]
    long = named.unpivot(["measured", "published"], index=index, variable_name="source").drop_nulls(
        "value"
    )
    measured = pl.when(source="measured").then("standard_error")
    drawn = long.select("d_k", "heads", "source", "value", error=measured.fill_null(0))
    return lines(
        drawn,
        "d_k",
        "value",
        "heads",
        dash="source",
        error="error",
        log_x=True,
        x_title="d_k",
        y_title="Test accuracy",
        color_title="Heads",
        title=f"{task}: test accuracy by d_k",
    )
