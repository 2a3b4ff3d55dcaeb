"""The result of asking which alternatives a softmax over queries and keys could give."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from identilens.results.stored import load_run, print_table, save_run

LOGIT_RANK_COLUMNS: dict[str, Any] = {
    "text": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "kind": pl.String,
    "n_key": pl.Int64,
    "d_k": pl.Int64,
    "d_v": pl.Int64,
    "simplex_nullity": pl.Int64,
    "original_rank": pl.Int64,
    "lowest_rank": pl.Int64,
    "mean_rank": pl.Float64,
    "highest_rank": pl.Int64,
    "realisable_share": pl.Float64,
    "alternatives": pl.Int64,
    "mean_total_variation": pl.Float64,
    "output_error": pl.Float64,
}
"""Columns of the logit rank table: one row for each text and head."""


@dataclass(frozen=True)
class LogitRanks:
    """Least logit ranks of random alternatives (Bhardwaj et al. 2021, Fig. 5).

    Attributes:
        table: One row for each text and head; columns as in `LOGIT_RANK_COLUMNS`.
        provenance: What made it.
    """

    table: pl.DataFrame
    provenance: dict[str, Any]

    def summary(self) -> str:
        """Return the finding in a sentence or two."""
        table = self.table
        drawn = int(table["alternatives"].sum())
        within = float((table["realisable_share"] * table["alternatives"]).sum()) / drawn
        share = float((table["mean_rank"] / (table["n_key"] - 1)).mean() or 0)  # pyright: ignore[reportArgumentType] a float
        return (
            f"{100 * within:.1f} % of {drawn:,} random alternatives of {len(table)} attention maps have logits of rank "
            f"at most d_k, so that queries and keys could give them. Their mean rank is {100 * share:.1f} % of the "
            "largest there is, the number of keys less one."
        )

    def show(self) -> None:
        """Print the finding and the means by layer."""
        Console().print(self.summary())
        measures = [name for name in LOGIT_RANK_COLUMNS if name not in ("text", "layer", "head", "kind")]
        print_table("Means by layer", self.table.group_by("kind", "layer").agg(pl.col(measures).mean()).sort("layer"))

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        save_run(folder, self.provenance, {"table": self.table})

    @classmethod
    def load(cls, folder: str | Path) -> "LogitRanks":
        """Return the result that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished run of this kind.
        """
        tables, record = load_run(folder, "logit ranks")
        return cls(tables["table"], record)

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>{self.table._repr_html_()}"
