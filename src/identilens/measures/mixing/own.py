"""What each token contributes to its own hidden state, as boxes by layer and by part of speech."""

from collections.abc import Sequence

import polars as pl


def own_contributions(table: pl.DataFrame, tokens: pl.DataFrame) -> pl.DataFrame:
    """Return, for each hidden token at each layer, the contribution of the input token at the same position.

    Cross attention relates two sequences, so it has no such position.

    Returns:
        Columns text, kind, layer, position, token, contribution, standard_error, and largest: True if no other input
        token contributes more.
    """
    largest = pl.col("contribution").max().over("text", "kind", "layer", "hidden")
    rows = (
        table.lazy()
        .filter(pl.col("kind") != "cross")
        .with_columns(largest=pl.col("contribution") >= largest)
        .filter(pl.col("hidden") == pl.col("input"))
        .rename({"hidden": "position"})
    )
    hidden = tokens.lazy().filter(side="hidden")
    joined = rows.join(hidden, on=["text", "kind", "position"], how="left", maintain_order="left")
    columns = (
        "text",
        "kind",
        "layer",
        "position",
        "token",
        "contribution",
        "standard_error",
        "largest",
    )
    return joined.select(*columns).collect()


def box_statistics(rows: pl.DataFrame, by: Sequence[str] = ("kind", "layer")) -> pl.DataFrame:
    """Return the five numbers of a box plot of contributions in each group (Brunner Fig. 3a, 26–37, 40a, 42a).

    Whiskers end at the furthest value within 1.5 times the box's height from the box (Tukey). Values beyond are
    outliers, and are not shown, as in the paper.

    ``rows`` are those of `own_contributions`, one per token, or have a ``contribution`` and the group columns.

    Returns:
        The group columns, low, q1, median, q3, high, mean, not_largest (if ``rows`` have ``largest``), and tokens.
    """
    value = pl.col("contribution")
    ends = {name: value.quantile(q, "linear").over(by) for name, q in (("q1", 0.25), ("q3", 0.75))}
    reach = 1.5 * (pl.col("q3") - pl.col("q1"))
    within = value.is_between(pl.col("q1") - reach, pl.col("q3") + reach)
    share = [(~pl.col("largest")).mean().alias("not_largest")] if "largest" in rows.columns else []
    return (
        rows.with_columns(**ends)
        .group_by(by)
        .agg(
            value.filter(within).min().alias("low"),
            pl.col("q1").first(),
            value.median().alias("median"),
            pl.col("q3").first(),
            value.filter(within).max().alias("high"),
            value.mean().alias("mean"),
            *share,
            pl.len().alias("tokens"),
        )
        .sort(by)
    )


def boxes_by_tag(contributions: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    """Return own contributions as boxes, one for each kind, layer and part of speech (Brunner Fig. 26–37).

    ``contributions`` are from `own_contributions`; ``tags`` has the tag of every token of every text: text, position,
    tag.

    Returns:
        Columns as from `box_statistics`, tags in the order of their median at the last layer, highest first.
    """
    boxes = box_statistics(
        contributions.join(tags, on=["text", "position"], how="inner"), ("kind", "layer", "tag")
    )
    last = boxes.filter(pl.col("layer") == pl.col("layer").max()).select(
        "kind", "tag", last="median"
    )
    return (
        boxes.join(last, on=["kind", "tag"])
        .sort("kind", "layer", "last", descending=[False, False, True])
        .drop("last")
    )
