"""Contributions of the context by distance and by relative position."""

import polars as pl

NEIGHBOUR_GROUPS: dict[str, tuple[int, int | None]] = {
    "1st": (1, 1),
    "2nd": (2, 2),
    "3rd": (3, 3),
    "4th-5th": (4, 5),
    "6th-10th": (6, 10),
    "11th onwards": (11, None),
}
"""Groups of neighbours by distance, both ends included (Brunner 5.3)."""


def neighbour_groups(table: pl.DataFrame) -> pl.DataFrame:
    """Return how much neighbours at each distance contribute in each layer (Brunner Fig. 4a, 41a, 43a).

    As in C.2: for each hidden token, the mean contribution of its left and right neighbours in a group; then the mean
    over all hidden tokens with such neighbours; then each group is scaled to sum to 1 over layers. Cross attention has
    no neighbours and is left out.

    Returns:
        Columns kind, group, layer, mean (before scaling), share (after scaling), tokens; groups in order.
    """
    distance = (pl.col("hidden") - pl.col("input")).abs()
    group = pl.lit(None, dtype=pl.String)
    for name, (low, high) in NEIGHBOUR_GROUPS.items():
        inside = distance >= low if high is None else distance.is_between(low, high)
        group = pl.when(inside).then(pl.lit(name)).otherwise(group)
    order = pl.Enum(list(NEIGHBOUR_GROUPS))
    tokens = (
        _context(table)
        .with_columns(group=group.cast(order))
        .drop_nulls("group")
        .group_by("text", "kind", "layer", "hidden", "group")
        .agg(pl.col("contribution").mean())
    )
    means = tokens.group_by("kind", "group", "layer").agg(
        mean=pl.col("contribution").mean(), tokens=pl.len()
    )
    shared = means.with_columns(share=pl.col("mean") / pl.col("mean").sum().over("kind", "group"))
    return (
        shared.select("kind", "group", "layer", "mean", "share", "tokens")
        .sort("kind", "group", "layer")
        .collect()
    )


def by_relative_position(table: pl.DataFrame) -> pl.DataFrame:
    """Return the total contribution from each relative position (Brunner Fig. 4b, 41b, 43b).

    For the first, the middle and the last layer. Cross attention has no relative positions.

    Returns:
        Columns kind, layer, offset (input position minus hidden position, never 0), total, share (of the layer's
        total) and pairs (number of pairs of tokens in the total).
    """
    totals = (
        _context(table)
        .filter(pl.col("layer").is_in(first_middle_last(table)))
        .group_by("kind", "layer", offset=pl.col("input") - pl.col("hidden"))
        .agg(total=pl.col("contribution").sum(), pairs=pl.len())
    )
    shared = totals.with_columns(
        share=pl.col("total") / pl.col("total").sum().over("kind", "layer")
    )
    return (
        shared.select("kind", "layer", "offset", "total", "share", "pairs")
        .sort("kind", "layer", "offset")
        .collect()
    )


def first_middle_last(table: pl.DataFrame) -> list[int]:
    """Return the first, middle and last layer of a table, such as 1, 6 and 12 of 12."""
    layers = table["layer"].unique().sort().to_list()
    return sorted({layers[0], layers[(len(layers) - 1) // 2], layers[-1]})


def _context(table: pl.DataFrame) -> pl.LazyFrame:
    causal = (pl.col("kind") == "decoder") & (pl.col("input") > pl.col("hidden"))
    other = (pl.col("kind") != "cross") & (pl.col("input") != pl.col("hidden"))
    return table.lazy().filter(other & ~causal)
