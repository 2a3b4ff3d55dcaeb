"""The result of training one identifiable encoder: metrics of every epoch, test accuracy, and where the model is."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from identilens.results.stored import finished_record, print_table

ANALYSIS = "training"

EPOCH_COLUMNS: dict[str, Any] = {
    "epoch": pl.Int64,
    "train_loss": pl.Float64,
    "validation_loss": pl.Float64,
    "validation_accuracy": pl.Float64,
}
"""Columns of the table: one row an epoch."""


@dataclass(frozen=True)
class EncoderRun:
    """One training run (Bhardwaj et al. 2021, section 6).

    Attributes:
        folder: Where it lies; the model is in ``folder/model`` unless it was dropped.
        table: One row an epoch; columns as in `EPOCH_COLUMNS`.
        metrics: Test accuracy at the best validation epoch, with sizes, settings and counts.
        provenance: What made it.
    """

    folder: Path
    table: pl.DataFrame
    metrics: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def model_path(self) -> Path:
        """Folder of the trained model, for `identilens.load`."""
        return self.folder / "model"

    def summary(self) -> str:
        """Return the finding in a sentence."""
        found = self.metrics
        return (
            f"{found['task']}, {found['heads']}, d_k = {found['d_k']}, d_v = {found['d_v']}: test accuracy "
            f"{found['test_accuracy']:.3f} at epoch {found['best_epoch']} of {found['epochs']} "
            f"(validation {found['validation_accuracy']:.3f}); {found['train_rows']:,} training, "
            f"{found['validation_rows']:,} validation, {found['test_rows']:,} test rows."
        )

    def show(self) -> None:
        """Print the finding and the epochs."""
        Console().print(self.summary())
        print_table("By epoch", self.table)

    @classmethod
    def load(cls, folder: str | Path) -> "EncoderRun":
        """Return the run that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished run of this kind.
        """
        path = Path(folder)
        record = finished_record(path, ANALYSIS)
        metrics = json.loads((path / "metrics.json").read_text(encoding="utf-8"))
        return cls(path, pl.read_parquet(path / "table.parquet"), metrics, record)
