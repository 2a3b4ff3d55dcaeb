"""The result of a sweep of training runs: Table 1 of Bhardwaj et al. 2021, measured beside published."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines
from identilens.runs.result import Finding, Result
from identilens.runs.tables import markdown_table


@dataclass(frozen=True, kw_only=True)
class EncoderSweep(Result):
    """Test accuracies of many training runs.

    Attributes:
        table: One row a run; accuracies are shares from 0 to 1, of the best validation epoch.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> data, rows = Path(tempfile.mkdtemp()), ['"1","ferries left"', '"2","snow fell"'] * 10
        >>> for part in ("train", "test"):
        ...     _ = (data / f"{part}.csv").write_text(chr(10).join(rows))
        >>> small = {"d_model": 16, "attention_heads": 2, "feed_forward": 16, "epochs": 2, "batch_size": 4}
        >>> sweep = idl.lab.sweep(out=data / "sweep", tasks="yelp", heads="add", d_k=1, data=data, **small)
        >>> sweep.table_one().columns, len(sweep.cells())
        (['task', 'version', 'source', '1'], 1)
    """

    analysis: ClassVar = "lab encoder sweep"
    title: ClassVar = "Encoders by key size"
    schema: ClassVar = {
        "table": {
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
    }

    def cells(self) -> pl.DataFrame:
        """Return one row a cell of Table 1: mean over seeds, its standard error (null for one seed), published."""
        accuracy = pl.col("test_accuracy")
        return (
            self.table.group_by("task", "heads", "d_k", maintain_order=True)
            .agg(
                pl.len().alias("seeds"),
                accuracy.mean(),
                (accuracy.std() / pl.len().sqrt()).alias("standard_error"),
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
        wide = named.pivot(
            "d_k", index=["task", "version", "source"], values="value", sort_columns=False
        )
        wide = wide.select(*wide.columns[:3], *sorted(wide.columns[3:], key=int))
        return wide.sort("task", pl.col("version") == "Add", "source", maintain_order=True)

    def markdown(self) -> str:
        """Return `table_one` as a Markdown table."""
        frame = self.table_one()
        return markdown_table(frame.rename({size: f"d_k = {size}" for size in frame.columns[3:]}))

    def subject(self) -> str:
        """Return the tasks."""
        return str(self.provenance["model"]["name"])

    def summary(self) -> Finding:
        """Return the finding: accuracy by task, and how far from the published cells."""
        apart = _apart(self.cells())
        headline = (
            [] if apart is None else [(f"{apart:.3f}", "from the published cells in the mean")]
        )
        return Finding("\n".join(self._sentences()), {"runs": len(self.table)}, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return Table 1, measured beside published."""
        return {"Test accuracy by d_k": self.table_one()}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``accuracy_<task>`` by key size for every task."""
        cells = self.cells()
        tasks = cells["task"].unique(maintain_order=True)
        return {
            f"accuracy_{task}": accuracy(cells.filter(pl.col("task") == task), task)
            for task in tasks
        }

    def _sentences(self) -> Iterator[str]:
        for (task,), rows in self.cells().group_by("task", maintain_order=True):
            spans = [
                f"{NAMES[str(heads)]} {rates['test_accuracy'].min():.3f} to {rates['test_accuracy'].max():.3f}"
                for (heads,), rates in rows.group_by("heads", maintain_order=True)
            ]
            apart = _apart(rows)
            beside = "" if apart is None else f"; {apart:.3f} from the published cells in the mean"
            yield f"{task}: {', '.join(spans)} over d_k {rows['d_k'].min()} to {rows['d_k'].max()}{beside}."


def _apart(cells: pl.DataFrame) -> float | None:
    return cells.select((pl.col("test_accuracy") - pl.col("published")).abs().mean()).item()


NAMES = {"concat": "Con", "add": "Add"}
"""Kinds of heads as the paper calls them."""


def accuracy(cells: pl.DataFrame, task: str) -> AnyChart:
    """Return a task's accuracy against d_k for both kinds of heads, measured beside published."""
    named = cells.select(
        "d_k",
        pl.col("heads").cast(pl.String).replace(NAMES),
        "standard_error",
        "published",
        measured="test_accuracy",
    )
    index = ["d_k", "heads", "standard_error"]
    long = named.unpivot(["measured", "published"], index=index, variable_name="source").drop_nulls(
        "value"
    )
    measured = pl.when(source="measured").then("standard_error")
    drawn = long.select("d_k", "heads", "source", "value", error=measured.fill_null(0))
    return lines(
        drawn,
        "d_k",
        "value",
        "heads",
        dash="source",
        error="error",
        log_x=True,
        x_title="d_k",
        y_title="Test accuracy",
        color_title="Heads",
        title=f"{task}: test accuracy by d_k",
    )
