"""Comparison of attention rollouts with contributions."""

import polars as pl


def rollout_correlation(table: pl.DataFrame) -> pl.DataFrame:
    """Return the correlation of raw and effective rollout with contributions, layer by layer.

    Pearson and Spearman correlation over the pairs of tokens of a text, averaged over the texts where they are defined.
    The token's own entry is the largest in all three, so with it they always agree. The correlations without it show
    whether attention tells *which context* is mixed in.

    Returns:
        Columns kind, layer, rollout ("raw", "effective"), pairs ("all", "context"), pearson, spearman, texts. No rows
        if the table has no rollouts.
    """
    causal = (pl.col("kind") == "decoder") & (pl.col("input") > pl.col("hidden"))
    seen = table.lazy().filter(~causal).drop_nulls("raw_rollout")
    found = []
    for pairs, rows in (
        ("all", seen),
        ("context", seen.filter(pl.col("hidden") != pl.col("input"))),
    ):
        for rollout in ("raw", "effective"):
            correlations = [
                pl.corr("contribution", f"{rollout}_rollout", method=method)
                .fill_nan(None)
                .alias(method)
                for method in ("pearson", "spearman")
            ]
            by_text = rows.group_by("kind", "layer", "text").agg(correlations)
            labels = pl.lit(rollout).alias("rollout"), pl.lit(pairs).alias("pairs")
            means = pl.col("pearson", "spearman").mean(), pl.col("pearson").count().alias("texts")
            found.append(by_text.group_by("kind", "layer").agg(*labels, *means))
    return pl.concat(found).sort("kind", "pairs", "rollout", "layer").collect()
