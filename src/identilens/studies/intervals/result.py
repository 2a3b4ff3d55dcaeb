"""The result of bounding attention weights: intervals, pinned weights and certified order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import AnyChart
from identilens.charts.page import Section
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, percent
from identilens.studies.intervals import views

_ROW = {**HEAD, "query": pl.Int64}


@dataclass(frozen=True, kw_only=True)
class Intervals(Result):
    """What is certain about attention weights.

    Attributes:
        table: The interval of every weight: one row for each query and visible key.
        rows: What is certain of each query's row as a whole.
        order: The pairs of keys whose order every alternative keeps.
        positions: What stands at each query and each key position.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> text = "The ferry left the harbour before dawn, and nobody could say who had paid."
        >>> result = idl.intervals(lens, text, layers=3, heads=5, queries=(2, 5))
        >>> result.by_query()
        shape: (2, 12)
        ┌──────┬───────┬──────┬─────────┬───┬────────┬────────────────┬─────────────────┬───────┐
        │ text ┆ layer ┆ head ┆ kind    ┆ … ┆ pinned ┆ first in every ┆ certified_pairs ┆ pairs │
        │ ---  ┆ ---   ┆ ---  ┆ ---     ┆   ┆ ---    ┆ alternative    ┆ ---             ┆ ---   │
        │ i64  ┆ i64   ┆ i64  ┆ str     ┆   ┆ u32    ┆ ---            ┆ i64             ┆ i64   │
        │      ┆       ┆      ┆         ┆   ┆        ┆ str            ┆                 ┆       │
        ╞══════╪═══════╪══════╪═════════╪═══╪════════╪════════════════╪═════════════════╪═══════╡
        │ 0    ┆ 3     ┆ 5    ┆ encoder ┆ … ┆ 18     ┆ [CLS]          ┆ 153             ┆ 153   │
        │ 0    ┆ 3     ┆ 5    ┆ encoder ┆ … ┆ 18     ┆ [CLS]          ┆ 153             ┆ 153   │
        └──────┴───────┴──────┴─────────┴───┴────────┴────────────────┴─────────────────┴───────┘
    """

    analysis: ClassVar = "intervals"
    title: ClassVar = "Intervals of attention weights"
    schema: ClassVar = {
        "table": {
            **_ROW, "key": pl.Int64, "weight": pl.Float64, "lo": pl.Float64, "hi": pl.Float64, "pinned": pl.Boolean,
            "effective": pl.Float64, "minimum_norm": pl.Float64,
        },
        "rows": {
            **_ROW, "simplex_nullity": pl.Int64, "certified_top": pl.Int64, "certified_pairs": pl.Int64,
            "pairs": pl.Int64, "gap": pl.Float64,
        },
        "order": {**_ROW, "above": pl.Int64, "below": pl.Int64},
        "positions": {"text": pl.Int64, "kind": pl.String, "side": pl.String, "position": pl.Int64, "token": pl.String},
    }  # fmt: skip
    keys: ClassVar = {"table": [*_ROW, "key"], "rows": [*_ROW]}

    rows: pl.DataFrame
    order: pl.DataFrame
    positions: pl.DataFrame

    def names(self, text: int, kind: str, side: str) -> list[str]:
        """Return the tokens at the ``query`` or ``key`` positions of a text."""
        return self.positions.filter(text=text, kind=kind, side=side).sort("position")["token"].to_list()

    def by_head(self) -> pl.DataFrame:
        """Return, for each text and head, how much of its weights and their order is certain."""
        weights = self.table.group_by(list(HEAD)).agg(
            pl.col("pinned").mean(), mean_width=views.WIDTH.mean(), widest=views.WIDTH.max()
        )
        rows = self.rows.group_by(list(HEAD)).agg(
            queries=pl.len(),
            certified_top=pl.col("certified_top").is_not_null().mean(),
            certified_pairs=pl.col("certified_pairs").sum() / pl.col("pairs").sum(),
        )
        return weights.join(rows, on=list(HEAD)).sort(list(HEAD))

    def by_query(self) -> pl.DataFrame:
        """Return what is certain of each row in words: tokens for positions."""
        pinned = self.table.group_by(list(_ROW)).agg(keys=pl.len(), pinned=pl.col("pinned").sum())
        rows = self.rows.join(pinned, on=list(_ROW), maintain_order="left")
        for column, side, name in (("query", "query", "token"), ("certified_top", "key", "first in every alternative")):
            names = self.positions.filter(side=side).drop("side").rename({"position": column, "token": name})
            rows = rows.join(names, on=["text", "kind", column], how="left", maintain_order="left")
        shown = ["token", "simplex_nullity", "keys", "pinned", "first in every alternative", "certified_pairs", "pairs"]
        return rows.select(*_ROW, *shown)

    def summary(self) -> Finding:
        """Return the finding: pinned weights, the least certain one, certain order."""
        weights, rows = self.table, self.rows
        pinned, tops = int(weights["pinned"].sum()), int(rows["certified_top"].is_not_null().sum())
        share = float(rows["certified_pairs"].sum()) / max(1, float(rows["pairs"].sum()))
        width = float(weights.select(views.WIDTH.mean()).item() or 0)
        lines = [
            f"{pinned} of {len(weights)} weights ({percent(pinned / len(weights))}) are pinned: the head's output "
            "allows no other value.",
            *self._least_certain(),
            f"{tops} of {len(rows)} queries have a key that is first in every alternative; {percent(share)} of all "
            "pairs of keys keep their order in every alternative.",
        ]
        numbers = {
            "weights": len(weights), "pinned": pinned, "mean_width": width, "queries": len(rows),
            "certified_tops": tops, "certified_pairs": share,
        }  # fmt: skip
        headline = (
            (f"{len(weights):,}", "weights bounded, each end proven"),
            (f"{width:.3f}", "mean width of an interval"),
            (f"{100 * tops / len(rows):.0f} %", "of queries have a certain first key"),
            (f"{100 * share:.0f} %", "of pairs of keys have a certain order"),
        )
        return Finding("\n".join(lines), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the weights of a single row; else the heads."""
        if len(self.rows) > 1:
            return {"Heads": self.by_head()}
        row = self.rows.row(0, named=True)
        names = self.names(row["text"], row["kind"], "key")
        tokens = pl.Series("token", [names[key] for key in self.table["key"]])
        weights = self.table.select("key", tokens, "weight", "lo", "hi", "pinned").sort("weight", descending=True)
        return {"Weights with their intervals": weights}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``intervals`` of the least certain rows, ``width_by_head`` and ``widths_...`` of single heads."""
        return {
            "intervals": views.widest_rows(self.table, self.positions),
            "width_by_head": views.width_by_head(self.by_head()),
            **views.width_maps(self.table, self.positions),
        }

    def sections(self) -> list[Section]:
        """Return the bars of every row, and heads and queries in numbers."""
        shown = views.within_page(self.table).select(list(_ROW)).n_unique()
        left_out = (
            f"This page contains the first {shown} of {len(self.rows)} rows, to stay small. In Python, "
            "Intervals.load(folder).table has them all."
        )
        bars = Section(
            "intervals", "What is certain of each weight", _BARS,
            charts=[views.every_row(self.table, self.positions, self.order)],
            note=left_out if shown < len(self.rows) else "",
        )  # fmt: skip
        heads = Section("heads", "Heads in numbers", charts=["width_by_head"], frame=self.by_head())
        return [bars, heads, Section("queries", "Queries in numbers", frame=self.by_query())]

    def _least_certain(self) -> Iterator[str]:
        free = self.table.filter(~pl.col("pinned")).with_columns(views.WIDTH).sort("width")
        for row in free.tail(1).iter_rows(named=True):
            query, key = (self.names(row["text"], row["kind"], side)[row[side]] for side in ("query", "key"))
            yield (
                f"The least certain is the weight of {query!r} (query {row['query']}) on {key!r} (key {row['key']}), "
                f"{row['weight']:.3f}, which may be anything from {row['lo']:.3f} to {row['hi']:.3f}."
            )


_BARS = (
    "Every bar runs over all values that a weight can take while the head's output, and the sum of the row, stay "
    "exactly as they are; no weight turns negative. The dot is the weight itself. A weight is pinned when its bar is "
    "a point.",
    "A key stands above another for certain when its weight is larger in every alternative. Choose a key to see which "
    "others certainly stand above or below it.",
)
