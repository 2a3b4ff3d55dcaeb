"""How logit ranks are drawn."""

import altair as alt
import polars as pl

from identilens.charts.encoding import AnyChart, inline, layered
from identilens.charts.kit import rule, scatter


def rank_by_length(table: pl.DataFrame) -> AnyChart:
    """Return logit ranks of each head's alternatives, mean and range, against its number of keys, with their limits."""
    drawn = table.select("n_key", "mean_rank", "lowest_rank", "highest_rank", "layer")
    chart = scatter(
        drawn, "n_key", "mean_rank", "layer", span=("lowest_rank", "highest_rank"),
        also=("lowest_rank", "highest_rank"), x_title="Keys (tokens)", y_title="Least logit rank of alternatives",
        color_title="Layer", title="Least logit rank of alternatives by length",
    )  # fmt: skip
    keys = table["n_key"].unique().sort()
    chart = layered([chart, _largest_possible(keys[0], keys[-1])])
    for d_k in table["d_k"].unique().sort():
        chart = rule(chart, y=d_k, label=f"d_k = {d_k}")
    return chart


def _largest_possible(shortest: int, longest: int) -> alt.LayerChart:
    """Return the line n − 1 between two lengths."""
    ends = [{"n_key": n, "rank": n - 1, "label": word} for n, word in ((shortest, ""), (longest, "n − 1, the largest"))]
    base = alt.Chart(inline(ends)).encode(x="n_key:Q", y="rank:Q")
    words = base.mark_text(align="right", dy=-8).encode(text="label:N")
    return layered([base.mark_line(strokeDash=[2, 3], point=False), words])
