"""Heads by both axes: how much of their attention is certain, and what the model's answer loses without them."""

from typing import Any

import polars as pl

from identilens.studies.drawn import ALIKE
from identilens.studies.outcomes import INFLUENTIAL, RELATIVE_EFFECT
from identilens.studies.settings import UNITS

MOSTLY = 0.5
"""Mean certain mass, up to bfloat16's rounding, from which the name of a head's corner says mostly certain."""

GROUPS = (
    "mostly certain and influential",
    "mostly certain and idle",
    "mostly open and influential",
    "mostly open and idle",
    "undecided",
)
MARGIN = 2.0
"""Standard errors of its certain mass and of its effect within which a head near a border is in no corner."""

_HEAD = ["kind", "layer", "head"]


def heads_table(table: pl.DataFrame, rows: pl.DataFrame, effects: pl.DataFrame) -> pl.DataFrame:
    """Return each head's means over texts, the interval of attention on its sink, and its group.

    ``certain_mass_error`` is the standard error of ``certain_mass_bfloat16`` over the rows that were drawn.
    ``effect`` is the mean change of the model's answer without the head, ``relative_effect`` its share of the largest,
    and ``relative_effect_error`` the standard error over texts of its share of each text's largest; 0 of a single one.
    ``sink_weight``, ``sink_lo`` and ``sink_hi`` are means over the rows that were looked at, ``sink_mass`` over all;
    ``relative_output`` is the head's output norm as a multiple of its layer's mean. ``group`` is missing where no
    certain mass or no effect was found, and undecided within the `MARGIN` of a border.
    """
    layer_size = pl.col("head").n_unique().over("text", "kind", "layer")
    measures = [
        "certain_mass_bfloat16",
        "certain_mass",
        "null_share",
        "relative_output",
        "sink_mass",
        "sink_norm_share",
        "sink_value_norm",
    ]
    means = (
        table.with_columns(relative_output=pl.col("output_share") * layer_size)
        .group_by(_HEAD)
        .agg(
            pl.col(*measures, "first_mass").mean(),
            pl.col("sink_token").mode().sort().first(),
            pl.col("certain_rows").sum(),
        )
    )
    mass, effect = pl.col("certain_mass_bfloat16"), pl.col("effect")
    ends = rows.group_by(_HEAD).agg(
        pl.col("sink_weight", "sink_lo", "sink_hi").mean(),
        certain_mass_error=mass.std() / mass.count().sqrt(),
    )
    share = (effect / effect.max().over("text")).fill_nan(0.0)
    moved = (
        effects.with_columns(share=share)
        .group_by(_HEAD)
        .agg(
            pl.col("outcome").first(),
            effect.mean(),
            relative_effect_error=pl.col("share").std().fill_null(0.0) / pl.len().sqrt(),
        )
    )
    moved = moved.with_columns(RELATIVE_EFFECT)
    more = pl.col("relative_effect") - pl.col("outcome").replace_strict(INFLUENTIAL)
    certain = _side(mass - MOSTLY, "certain_mass_error", "mostly certain", "mostly open")
    writes = _side(more, "relative_effect_error", "influential", "idle")
    group = pl.format("{} and {}", certain, writes).fill_null(GROUPS[-1])
    known = pl.all_horizontal(pl.col("certain_mass", "effect").is_not_null())
    joined = means.join(ends, on=_HEAD, how="left").join(moved, on=_HEAD, how="left").sort(_HEAD)
    joined = joined.with_columns(group=pl.when(known).then(group))
    return joined.select(*_HEAD, "group", pl.exclude(*_HEAD, "group"))


def _side(distance: pl.Expr, error: str, above: str, below: str) -> pl.Expr:
    """Return on which side of a border a number is, null within the margin of its error, and of none."""
    return (
        pl.when(distance >= MARGIN * pl.col(error))
        .then(pl.lit(above))
        .when(distance < -MARGIN * pl.col(error))
        .then(pl.lit(below))
    )


def groups_table(heads: pl.DataFrame) -> pl.DataFrame:
    """Return how many heads each group has, with the means of what tells the groups apart."""
    names = (
        "certain_mass_bfloat16",
        "relative_effect",
        "relative_output",
        "sink_mass",
        "sink_norm_share",
        "null_share",
    )
    order = pl.DataFrame({"group": GROUPS})
    sizes = (
        heads.drop_nulls("group")
        .group_by("group")
        .agg(pl.len().alias("heads"), pl.col(*names).mean())
    )
    return order.join(sizes, on="group", how="left", maintain_order="left").with_columns(
        pl.col("heads").fill_null(0)
    )


def certain_error(rows: pl.DataFrame, table: pl.DataFrame) -> tuple[float | None, str]:
    """Return the standard error of mean certain mass up to bfloat16's rounding, and what it is over.

    None where too few rows were drawn, or where no error is left: all are alike, or all were drawn. Several texts are
    the sample. Of a single one it is the queries drawn in each layer, the same for all its heads, from those of the
    audit's ``table``: a finite population.
    """
    mass = pl.col("certain_mass_bfloat16")
    rows = rows.drop_nulls("certain_mass_bfloat16")
    if rows["text"].n_unique() > 1:
        texts = rows.group_by("text").agg(mass.mean())["certain_mass_bfloat16"].to_numpy()
        error = float(texts.std(ddof=1)) / len(texts) ** 0.5
        return error if error > ALIKE else None, "texts"
    layer, over = ["text", "kind", "layer"], "the queries drawn in each layer of this text"
    sizes = table.select(*layer, "n_query").unique()
    drawn = rows.group_by(*layer, "query").agg(mass.mean()).join(sizes, on=layer)
    square = mass.var() / pl.len() * (1 - pl.len() / pl.col("n_query").first())
    squares = drawn.group_by(layer).agg(square=square)["square"]
    if not len(squares) or squares.null_count():
        return None, over
    error = float(squares.sum()) ** 0.5 / len(squares)
    return error if error > ALIKE else None, over


def stacked_numbers(table: pl.DataFrame) -> dict[str, Any]:
    """Return in how many layers heads can trade: the stacked W_O lacks full row rank there; and ``full`` if nowhere."""
    layers = table.group_by("kind", "layer").agg(
        (pl.col("head").n_unique() * pl.col("d_v").first()).alias("stacked_size"),
        pl.col("stacked_rank").first(),
    )
    trading = layers.filter(pl.col("stacked_rank") < pl.col("stacked_size"))
    if trading.is_empty():
        return {"full": len(layers)}
    ranks, size = trading["stacked_rank"], trading["stacked_size"].max()
    ends = {"least_rank": ranks.min(), "most_rank": ranks.max(), "stacked_size": size}
    return {"trading": len(trading), "layers": len(layers), **ends}


def effect_numbers(heads: pl.DataFrame, effects: pl.DataFrame) -> dict[str, Any]:
    """Return which head matters most to the model's answer, and how many come near it."""
    if effects.is_empty():
        return {"unmoved": len(heads)}
    known = heads.drop_nulls("effect")
    outcome, by = effects.select("outcome", "by").row(0)
    first = known.sort("effect", maintain_order=True).row(-1, named=True)
    enough = INFLUENTIAL[outcome]
    return {
        **{name: first[name] for name in (*_HEAD, "effect", "outcome")},
        "unit": UNITS[outcome],
        "enough": enough,
        "near": len(known.filter(pl.col("relative_effect") >= enough)),
        "heads": len(known),
        "by": by if by == "removal" else "estimated to first order",
        "effect_texts": effects["text"].n_unique(),
    }
