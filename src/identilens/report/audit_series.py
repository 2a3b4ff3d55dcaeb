"""What the figures of an audit show, as plain frames and arrays: the HTML report and the paper figures share it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy import ndarray

from identilens.results import Audit

MOST_POINTS = 5000
"""With more maps than this, the correlation figure shows means instead of one point a map."""

_KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class HeadMap:
    """One measure for every layer and head, averaged over texts.

    Attributes:
        layers: Layer numbers of the rows.
        heads: Head numbers of the columns.
        values: The means; NaN where the measure is defined in no text.
    """

    layers: list[int]
    heads: list[int]
    values: Float[ndarray, "layer head"]


@dataclass(frozen=True)
class CorrelationPoints:
    """Correlation of raw and effective attention against length (Brunner et al. 2020, Fig. 1a).

    Attributes:
        frame: Columns ``length``, ``pearson``, ``layer``, ``maps``; with one map a point also ``text``, ``head``.
        d_v: Value sizes that occur: no map with fewer visible keys than this has a null space by necessity.
        maps: Maps with a correlation.
        undefined: Maps without one, such as those of a single token.
        grouped: Whether points are means over texts and heads.
        width: Lengths that share a point when grouped.
    """

    frame: pl.DataFrame
    d_v: list[int]
    maps: int
    undefined: int
    grouped: bool
    width: int


def kinds(audit: Audit) -> list[str]:
    """Return the kinds of attention in the table, encoder first."""
    held = set(audit.table["kind"].unique())
    return [kind for kind in _KINDS if kind in held] + sorted(held - set(_KINDS))


def head_map(audit: Audit, kind: str, measure: str) -> HeadMap:
    """Return one measure of one kind by layer and head."""
    frame = audit.by_head().filter(pl.col("kind") == kind)
    layers, heads = frame["layer"].unique().sort().to_list(), frame["head"].unique().sort().to_list()
    values = np.full((len(layers), len(heads)), np.nan)
    for layer, head, value in frame.select("layer", "head", measure).iter_rows():
        if value is not None:
            values[layers.index(layer), heads.index(head)] = value
    return HeadMap(layers, heads, values)


def correlation_points(audit: Audit, kind: str, most: int = MOST_POINTS) -> CorrelationPoints:
    """Return correlation against length: one point a map, or means by length and layer when there are too many.

    Args:
        audit: The result.
        kind: Kind of attention.
        most: Points that a figure can carry.
    """
    table = audit.table.filter(pl.col("kind") == kind).with_columns(length=pl.col("n_key").cast(pl.Float64))
    defined = table.filter(pl.col("pearson").is_not_null() & pl.col("pearson").is_not_nan())
    d_v = table["d_v"].unique().sort().to_list()
    undefined = len(table) - len(defined)
    if len(defined) <= most:
        frame = defined.select("length", "pearson", "layer", "text", "head", maps=pl.lit(1, pl.Int64))
        return CorrelationPoints(frame, d_v, len(defined), undefined, grouped=False, width=1)
    width = 1
    frame = _grouped(defined, width)
    while len(frame) > most:
        width *= 2
        frame = _grouped(defined, width)
    return CorrelationPoints(frame, d_v, len(defined), undefined, grouped=True, width=width)


def type_names(audit: Audit) -> list[str]:
    """Return the token types in the order of the table."""
    names = pl.concat([audit.token_types["key_type"], audit.token_types["query_type"]])
    return names.unique(maintain_order=True).to_list()


def received_by_type(audit: Audit, kind: str) -> pl.DataFrame:
    """Return what each token type receives, by layer and head, in columns type, layer, head, raw, effective.

    Brunner et al. 2020, Fig. 1b (raw) and 1c (effective).
    """
    frame = audit.received().filter(pl.col("kind") == kind)
    return frame.select(pl.col("key_type").alias("type"), "layer", "head", "raw", "effective")


def put_on_type(audit: Audit, kind: str, key_type: str) -> pl.DataFrame:
    """Return what tokens of each type put on one key type, in columns type, layer, head, raw, effective.

    Brunner et al. 2020, Fig. 5, where the key type is [SEP].
    """
    chosen = (pl.col("kind") == kind) & (pl.col("key_type") == key_type)
    return audit.token_types.filter(chosen).select(
        pl.col("query_type").alias("type"), "layer", "head", "raw", "effective"
    )


def layer_means(frame: pl.DataFrame, names: list[str]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each type that occurs with its mean over heads by layer, in the order of ``names``."""
    for name in names:
        rows = frame.filter(pl.col("type") == name)
        if len(rows):
            yield name, rows.group_by("layer").agg(pl.col("raw", "effective").mean()).sort("layer")


def _grouped(defined: pl.DataFrame, width: int) -> pl.DataFrame:
    bins = (pl.col("n_key") // width) * width + (width - 1) / 2
    return (
        defined.group_by(bins.alias("length"), "layer")
        .agg(pl.col("pearson").mean(), pl.len().cast(pl.Int64).alias("maps"))
        .sort("length", "layer")
        .select(pl.col("length").cast(pl.Float64), "pearson", "layer", "maps")
    )
