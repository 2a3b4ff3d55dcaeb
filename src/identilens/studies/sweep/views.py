"""How accuracies of a sweep are drawn."""

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines

NAMES = {"concat": "Con", "add": "Add"}
"""Kinds of heads as the paper calls them."""


def accuracy(cells: pl.DataFrame, task: str) -> AnyChart:
    """Return a task's accuracy against d_k for both kinds of heads, measured beside published."""
    named = cells.select(
        "d_k", heads=pl.col("heads").cast(pl.String).replace(NAMES), measured="test_accuracy", published="published"
    )
    drawn = named.unpivot(["measured", "published"], index=["d_k", "heads"], variable_name="source", value_name="value")
    errors = cells.select(
        "d_k",
        pl.col("heads").cast(pl.String).replace(NAMES),
        pl.lit("measured").alias("source"),
        error=pl.col("standard_error").fill_null(0),
    )
    both = drawn.drop_nulls("value").join(errors, on=["d_k", "heads", "source"], how="left")
    return lines(
        both.with_columns(pl.col("error").fill_null(0)), "d_k", "value", "heads", dash="source", error="error",
        log_x=True, x_title="d_k", y_title="Test accuracy", color_title="Heads", title=f"{task}: test accuracy by d_k",
    )  # fmt: skip
