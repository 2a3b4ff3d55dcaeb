"""Means over texts with bootstrap intervals, by explanation; paired differences; and rows that were left out."""

from collections.abc import Sequence
from math import isnan
from typing import Any

import polars as pl
import torch

from identilens.measures.explanations.agreement import bootstrap_interval
from identilens.runs.tables import Columns, table_of

MEAN: Columns = {"mean": pl.Float64, "low": pl.Float64, "high": pl.Float64, "texts": pl.Int64}


def means(table: pl.DataFrame, by: Sequence[str], measure: str) -> pl.DataFrame:
    """Return the mean of a measure over texts for each group, with its 95 % bootstrap interval.

    Rows of one text are averaged first. Rows without the measure are left out. One text has no interval: NaN.
    """
    texts = (
        table.drop_nulls(measure)
        .group_by(*by, "text", maintain_order=True)
        .agg(pl.col(measure).mean())
    )
    groups = texts.group_by(list(by), maintain_order=True)
    rows = [_interval(dict(zip(by, group, strict=True)), held[measure]) for group, held in groups]
    return table_of({**{name: table.schema[name] for name in by}, **MEAN}, rows)


def differences(
    table: pl.DataFrame, by: Sequence[str], measure: str, reference: str
) -> pl.DataFrame:
    """Return the mean difference of each explanation to a reference on the same texts, with its interval."""
    keys = [*by, "text"]
    texts = (
        table.drop_nulls(measure)
        .group_by(*keys, "explanation", maintain_order=True)
        .agg(pl.col(measure).mean())
    )
    base = texts.filter(explanation=reference).select(*keys, base=measure)
    paired = texts.filter(pl.col("explanation") != reference).join(
        base, on=keys, maintain_order="left"
    )
    return means(
        paired.with_columns(pl.col(measure) - pl.col("base")), [*by, "explanation"], measure
    )


def on_axes(faithful: pl.DataFrame, stable: pl.DataFrame) -> pl.DataFrame:
    """Return each explanation's mean NAOPC in one table and mean agreement in the other, with their intervals."""
    ends = {"mean": "", "low": "_low", "high": "_high"}
    axes = [
        means(one, ["explanation"], measure).select(
            "explanation", *(pl.col(name).alias(f"{axis}{end}") for name, end in ends.items())
        )
        for one, measure, axis in ((faithful, "naopc", "faithful"), (stable, "agreement", "stable"))
    ]
    return axes[0].join(axes[1], on="explanation", how="left", maintain_order="left")


def left_out(table: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the number of rows without correlation or NAOPC: the noise floor leaves no order of their effects."""
    tested = table.filter(explanation="random").group_by(list(by), maintain_order=True)
    measures = [
        pl.col(name).null_count().cast(pl.Int64).alias(f"no_{name}")
        for name in ("correlation", "naopc")
    ]
    return tested.agg(pl.len().cast(pl.Int64).alias("rows"), *measures)


def in_words(mean: float, low: float, high: float, form: str = ".2f") -> str:
    """Return a mean with its interval, if there is one."""
    return f"{mean:{form}}" + ("" if isnan(low) else f" [{low:{form}}, {high:{form}}]")


def _interval(at: dict[str, Any], values: pl.Series) -> dict[str, Any]:
    found = bootstrap_interval(torch.tensor(values.to_list(), dtype=torch.float64))
    return {**at, "mean": found.mean, "low": found.low, "high": found.high, "texts": len(values)}
