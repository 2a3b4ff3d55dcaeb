"""How logit ranks are drawn."""

import polars as pl

from identilens.charts.kit import AnyChart, rule, scatter


def rank_by_length(table: pl.DataFrame) -> AnyChart:
    """Return the mean logit rank of each head's alternatives against its number of keys, with d_k as a rule."""
    drawn = table.select("n_key", "mean_rank", "lowest_rank", "highest_rank", "layer")
    chart = scatter(
        drawn, "n_key", "mean_rank", "layer",
        x_title="Keys (tokens)", y_title="Least logit rank of alternatives", color_title="Layer",
        title="Least logit rank of alternatives by length",
    )  # fmt: skip
    for d_k in table["d_k"].unique().sort():
        chart = rule(chart, y=d_k, label=f"d_k = {d_k}")
    return chart
