"""The result of bounding attention weights: intervals, pinned weights and certified order."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from identilens.results.stored import load_run, percent, print_table, save_run

HEAD = {"text": pl.Int64, "layer": pl.Int64, "head": pl.Int64, "kind": pl.String}

INTERVAL_COLUMNS: dict[str, Any] = {
    **HEAD,
    "query": pl.Int64,
    "key": pl.Int64,
    "weight": pl.Float64,
    "lo": pl.Float64,
    "hi": pl.Float64,
    "pinned": pl.Boolean,
    "effective": pl.Float64,
    "minimum_norm": pl.Float64,
}
"""Columns of the interval table: one row for each query and visible key."""

ROW_COLUMNS: dict[str, Any] = {
    **HEAD,
    "query": pl.Int64,
    "simplex_nullity": pl.Int64,
    "certified_top": pl.Int64,
    "certified_pairs": pl.Int64,
    "pairs": pl.Int64,
    "gap": pl.Float64,
}
"""Columns of the row table: one row for each query."""

ORDER_COLUMNS: dict[str, Any] = {**HEAD, "query": pl.Int64, "above": pl.Int64, "below": pl.Int64}
"""Columns of the order table: one row for each pair of keys whose order every alternative keeps."""

INTERVAL_TOKEN_COLUMNS: dict[str, Any] = {
    "text": pl.Int64,
    "kind": pl.String,
    "side": pl.String,
    "position": pl.Int64,
    "token": pl.String,
}
"""Columns of the token table: what stands at each query and each key position."""

TABLES = {
    "table": INTERVAL_COLUMNS,
    "rows": ROW_COLUMNS,
    "order": ORDER_COLUMNS,
    "tokens": INTERVAL_TOKEN_COLUMNS,
}


@dataclass(frozen=True)
class Intervals:
    """What is certain about attention weights.

    Attributes:
        table: The interval of every weight; columns as in `INTERVAL_COLUMNS`.
        rows: What is certain of each query's row as a whole; columns as in `ROW_COLUMNS`.
        order: The certified pairs; columns as in `ORDER_COLUMNS`.
        tokens: The tokens; columns as in `INTERVAL_TOKEN_COLUMNS`.
        provenance: What made it.
    """

    table: pl.DataFrame
    rows: pl.DataFrame
    order: pl.DataFrame
    tokens: pl.DataFrame
    provenance: dict[str, Any]

    def names(self, text: int, kind: str, side: str) -> list[str]:
        """Return the tokens at the ``query`` or ``key`` positions of a text."""
        here = (pl.col("text") == text) & (pl.col("kind") == kind) & (pl.col("side") == side)
        return self.tokens.filter(here).sort("position")["token"].to_list()

    def by_head(self) -> pl.DataFrame:
        """Return, for each text and head, how much of its weights and their order is certain."""
        weights = self.table.group_by(list(HEAD)).agg(
            pl.col("pinned").mean().alias("pinned"),
            (pl.col("hi") - pl.col("lo")).mean().alias("mean_width"),
            (pl.col("hi") - pl.col("lo")).max().alias("widest"),
        )
        rows = self.rows.group_by(list(HEAD)).agg(
            pl.len().alias("queries"),
            pl.col("certified_top").is_not_null().mean().alias("certified_top"),
            (pl.col("certified_pairs").sum() / pl.col("pairs").sum()).alias("certified_pairs"),
        )
        return weights.join(rows, on=list(HEAD)).sort(list(HEAD))

    def summary(self) -> str:
        """Return the finding in a few sentences."""
        return "\n".join(self._sentences())

    def show(self) -> None:
        """Print the finding and, for a single row, its weights; else the heads."""
        Console().print(self.summary())
        if len(self.rows) == 1:
            row = self.rows.row(0, named=True)
            names = self.names(row["text"], row["kind"], "key")
            tokens = pl.Series("token", [names[key] for key in self.table["key"]])
            weights = self.table.select("key", tokens, "weight", "lo", "hi", "pinned").sort("weight", descending=True)
            print_table("Weights with their intervals", weights)
        else:
            print_table("Heads", self.by_head())

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        save_run(folder, self.provenance, {name: getattr(self, name) for name in TABLES})

    @classmethod
    def load(cls, folder: str | Path) -> "Intervals":
        """Return the result that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished run of this kind.
        """
        tables, record = load_run(folder, "intervals", TABLES)
        return cls(**tables, provenance=record)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file and return its path."""
        from identilens.report import write_intervals_report

        return write_intervals_report(self, Path(path))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>{self.by_head()._repr_html_()}"

    def _sentences(self) -> Iterator[str]:
        weights, rows = self.table, self.rows
        pinned = int(weights["pinned"].sum())
        yield (
            f"{pinned} of {len(weights)} weights ({percent(pinned / len(weights))}) are pinned: the head's output "
            "allows no other value."
        )
        if pinned < len(weights):
            free = weights.filter(~pl.col("pinned")).with_columns(width=pl.col("hi") - pl.col("lo"))
            widest = free.sort("width").row(-1, named=True)
            query = self.names(widest["text"], widest["kind"], "query")[widest["query"]]
            key = self.names(widest["text"], widest["kind"], "key")[widest["key"]]
            yield (
                f"The least certain is the weight of {query!r} (query {widest['query']}) on {key!r} (key "
                f"{widest['key']}), {widest['weight']:.3f}, which may be anything from {widest['lo']:.3f} to "
                f"{widest['hi']:.3f}."
            )
        tops = rows["certified_top"].is_not_null().sum()
        share = float(rows["certified_pairs"].sum()) / max(1, float(rows["pairs"].sum()))
        yield (
            f"{tops} of {len(rows)} queries have a key that is first in every alternative; {percent(share)} of all "
            "pairs of keys keep their order in every alternative."
        )
