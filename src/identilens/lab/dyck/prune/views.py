"""How prunings are drawn."""

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines


def error_by_width(means: pl.DataFrame) -> AnyChart:
    """Return mean and largest error over random transformers by their width, and the largest over random inputs."""
    named = means.select(
        "width",
        pl.col("largest").alias("largest by ascent"),
        pl.col("mean").alias("mean by ascent"),
        pl.col("sampled").alias("largest over random inputs"),
    )
    drawn = named.unpivot(index="width", variable_name="over", value_name="error")
    return lines(
        drawn, "width", "error", "over", log_y=True, x_title="Width of the random feed-forward block",
        y_title="Largest error of a token", color_title="Error", title="Largest error of a token by width",
    )  # fmt: skip
