"""Heads by both axes: how much of their attention is certain, and what the model's answer loses without them."""

from typing import Any

import polars as pl

from identilens.studies.drawn import ALIKE
from identilens.studies.outcomes import BRINGS, INFLUENTIAL, PARKED, RELATIVE_EFFECT
from identilens.studies.settings import UNITS

MOSTLY = 0.5
"""Mean certain mass, up to bfloat16's rounding, from which the name of a head's corner says mostly certain."""

GROUPS = (
    "mostly certain and influential",
    "mostly certain and idle",
    "mostly open and influential",
    "mostly open and idle",
)

_HEAD = ["kind", "layer", "head"]


def heads_table(table: pl.DataFrame, rows: pl.DataFrame, effects: pl.DataFrame) -> pl.DataFrame:
    """Return each head's means over texts, the interval of attention on its sink, and its group.

    ``certain_mass_error`` is the standard error of ``certain_mass``: over texts, or of a single one over its rows.
    ``effect`` is the mean change of the model's answer without the head, and ``relative_effect`` its share of the
    largest.
    ``sink_weight``, ``sink_lo`` and ``sink_hi`` are means over the rows that were looked at, ``sink_mass`` over all;
    ``relative_output`` is the head's output norm as a multiple of its layer's mean; ``group`` is missing where no
    certain mass or no effect was found.
    """
    layer_size = pl.col("head").n_unique().over("text", "kind", "layer")
    measures = [
        "certain_mass",
        "certain_mass_bfloat16",
        "null_share",
        "relative_output",
        "sink_mass",
        "sink_norm_share",
        "sink_value_norm",
    ]
    exact = pl.col("certain_mass")
    means = (
        table.with_columns(relative_output=pl.col("output_share") * layer_size)
        .group_by(_HEAD)
        .agg(
            pl.col("sink_token").mode().sort().first(),
            pl.col(*measures, "first_mass").mean(),
            pl.col("certain_rows").sum(),
            certain_mass_error=pl.when(exact.count() > 1)
            .then(pl.when(exact.std() > ALIKE).then(exact.std() / exact.count().sqrt()))
            .otherwise(pl.col("certain_mass_error").max()),
        )
    )
    ends = rows.group_by(_HEAD).agg(pl.col("sink_weight", "sink_lo", "sink_hi").mean())
    certain = (
        pl.when(pl.col("certain_mass_bfloat16") >= MOSTLY)
        .then(pl.lit("mostly certain"))
        .otherwise(pl.lit("mostly open"))
    )
    writes = (
        pl.when(pl.col("relative_effect") >= pl.col("outcome").replace_strict(INFLUENTIAL))
        .then(pl.lit("influential"))
        .otherwise(pl.lit("idle"))
    )
    moved = effects.group_by(_HEAD).agg(pl.col("outcome").first(), pl.col("effect").mean())
    moved = moved.with_columns(RELATIVE_EFFECT)
    known = pl.all_horizontal(pl.col("certain_mass", "effect").is_not_null())
    joined = means.join(ends, on=_HEAD, how="left").join(moved, on=_HEAD, how="left").sort(_HEAD)
    joined = joined.with_columns(group=pl.when(known).then(pl.format("{} and {}", certain, writes)))
    first = ["group", "certain_mass", "certain_mass_error", "certain_mass_bfloat16"]
    effect = ["outcome", "effect", "relative_effect", "relative_output"]
    sink = ["sink_token", "sink_mass", "sink_weight", "sink_lo", "sink_hi"]
    last = ["sink_norm_share", "sink_value_norm", "first_mass", "null_share", "certain_rows"]
    return joined.select(*_HEAD, *first, *effect, *sink, *last)


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

    None where too few rows were drawn, or where all that were drawn are alike. Several texts are the sample. Of a
    single one it is the queries drawn in each layer, the same for all its heads, from those of the audit's ``table``: a
    finite population of which the mean is known when all were drawn.
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
    left = 1 - pl.len() / pl.col("n_query").first()
    layers = drawn.group_by(layer).agg(square=mass.var() * left / pl.len(), left=left)
    squares = layers["square"]
    if not len(squares) or squares.null_count():
        return None, over
    error = float(squares.sum()) ** 0.5 / len(squares)
    return None if error <= ALIKE and (layers["left"] > 0).any() else error, over


def stacked_numbers(table: pl.DataFrame) -> dict[str, Any]:
    """Return in how many layers heads can trade: the stacked W_O lacks full row rank there; and ``full`` if nowhere."""
    layers = table.group_by("kind", "layer").agg(
        (pl.col("head").n_unique() * pl.col("d_v").first()).alias("stacked_size"),
        pl.col("stacked_rank").first(),
    )
    trading = layers.filter(pl.col("stacked_rank") < pl.col("stacked_size")).sort("kind", "layer")
    if trading.is_empty():
        return {"full": len(layers)}
    first = trading.select("stacked_rank", "stacked_size").row(0, named=True)
    return {"trading": len(trading), "layers": len(layers), **first}


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


def parked_numbers(heads: pl.DataFrame) -> dict[str, Any]:
    """Return how many heads park their attention, and the means of how much, for what, and within which ends."""
    parked = heads.drop_nulls("group").filter(
        pl.col("sink_mass") >= PARKED,
        pl.col("sink_norm_share") < BRINGS,
        pl.col("relative_output") > 0,
    )
    names = ("sink_mass", "sink_weight", "sink_lo", "sink_hi", "sink_norm_share")
    means = parked.select(pl.col(*names).mean().name.prefix("parked_")).row(0, named=True)
    return {"parked": len(parked) or None, **means}
