"""The result of a sweep of training runs: Table 1 of Bhardwaj et al. 2021, measured beside published."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from identilens.results.stored import load_run, markdown_table, print_table, save_run

ANALYSIS = "encoder sweep"

RUN_COLUMNS: dict[str, Any] = {
    "task": pl.String,
    "heads": pl.Enum(["concat", "add"]),
    "d_k": pl.Int64,
    "d_v": pl.Int64,
    "seed": pl.Int64,
    "test_accuracy": pl.Float64,
    "published": pl.Float64,
    "validation_accuracy": pl.Float64,
    "best_epoch": pl.Int64,
    "epochs": pl.Int64,
    "test_loss": pl.Float64,
    "train_rows": pl.Int64,
    "validation_rows": pl.Int64,
    "test_rows": pl.Int64,
    "vocabulary": pl.Int64,
    "parameters": pl.Int64,
    "precision": pl.String,
    "seconds": pl.Float64,
}
"""Columns of the table: one row a run; accuracies are shares from 0 to 1, of the best validation epoch."""

NAMES = {"concat": "Con", "add": "Add"}


@dataclass(frozen=True)
class EncoderSweep:
    """Test accuracies of many training runs.

    Attributes:
        table: One row a run; columns as in `RUN_COLUMNS`.
        provenance: What made it.
    """

    table: pl.DataFrame
    provenance: dict[str, Any]

    def cells(self) -> pl.DataFrame:
        """Return one row a cell of Table 1: mean over seeds, its standard error (null for one seed), published."""
        return (
            self.table.group_by("task", "heads", "d_k", maintain_order=True)
            .agg(
                pl.len().alias("seeds"),
                pl.col("test_accuracy").mean(),
                (pl.col("test_accuracy").std() / pl.len().sqrt()).alias("standard_error"),
                pl.col("published").first(),
                pl.col("train_rows").max(),
                pl.col("epochs").max(),
            )
            .sort("task", "heads", "d_k")
        )

    def table_one(self) -> pl.DataFrame:
        """Return accuracies by key size, one row for each task, version and source (measured, published)."""
        long = self.cells().unpivot(
            ["test_accuracy", "published"], index=["task", "heads", "d_k"], variable_name="source"
        )
        named = long.with_columns(
            pl.col("source").replace({"test_accuracy": "measured"}),
            pl.col("heads").cast(pl.String).replace(NAMES).alias("version"),
            pl.col("value").round(3),
        )
        wide = named.pivot("d_k", index=["task", "version", "source"], values="value", sort_columns=False)
        sizes = sorted((int(name) for name in wide.columns[3:]), key=int)
        return wide.select("task", "version", "source", *(str(size) for size in sizes)).sort(
            "task", pl.col("version") == "Add", "source", maintain_order=True
        )

    def markdown(self) -> str:
        """Return `table_one` as a Markdown table."""
        frame = self.table_one()
        return markdown_table(frame.rename({size: f"d_k = {size}" for size in frame.columns[3:]}))

    def summary(self) -> str:
        """Return the finding in a few sentences."""
        return "\n".join(self._sentences())

    def show(self) -> None:
        """Print the finding and Table 1, measured beside published."""
        Console().print(self.summary())
        print_table("Test accuracy by d_k", self.table_one())

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        save_run(folder, self.provenance, {"table": self.table})

    @classmethod
    def load(cls, folder: str | Path) -> "EncoderSweep":
        """Return the sweep that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished sweep.
        """
        tables, record = load_run(folder, ANALYSIS)
        return cls(tables["table"].cast(pl.Schema(RUN_COLUMNS)), record)

    def _sentences(self) -> Iterator[str]:
        for (task,), rows in self.cells().group_by("task", maintain_order=True):
            spans = []
            for (heads,), own in rows.group_by("heads", maintain_order=True):
                low, high = own["test_accuracy"].min(), own["test_accuracy"].max()
                spans.append(f"{NAMES[str(heads)]} {low:.3f} to {high:.3f}")
            held = rows.drop_nulls("published")
            apart = (held["test_accuracy"] - held["published"]).abs().mean() if len(held) else None
            beside = "" if apart is None else f"; {apart:.3f} from the published cells in the mean"
            yield f"{task}: {', '.join(spans)} over d_k {rows['d_k'].min()} to {rows['d_k'].max()}{beside}."
