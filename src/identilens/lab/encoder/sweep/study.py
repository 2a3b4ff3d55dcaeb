"""Many training runs, one row each: every task, kind of heads, key size and seed (Bhardwaj et al. 2021, Table 1)."""

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import ClassVar

import polars as pl

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.lab.encoder.settings import D_K, EncoderSettings, SweepSettings, TrainingSettings
from identilens.lab.encoder.train.study import TrainStudy
from identilens.runs.files import Manifest
from identilens.runs.provenance import Identity
from identilens.runs.result import Finding, Result
from identilens.runs.study import Output, Study, run_study, study_function
from identilens.runs.tables import decimals, integers, table_of


@cache
def published_accuracies() -> pl.DataFrame:
    """Return Table 1 of the paper: a row for each task and kind of heads, a column for each d_k."""
    return pl.read_csv(Path(__file__).with_name("table1.csv").read_bytes())


def published_accuracy(task: str, heads: str, d_k: int) -> float | None:
    """Return a cell of Table 1, or None if there is none."""
    row = published_accuracies().filter(task=task, heads=heads)
    return row[str(d_k)][0] if len(row) and d_k in D_K else None


NAMES = {"concat": "Con", "add": "Add"}
"""Kinds of heads as the paper calls them."""
_FINDING = """\
{runs:run} of {cells:cell} of Table 1 (task, heads, d_k): test accuracies from {least:.3f} to {most:.3f}, means over \
seeds.
The mean distance from the published accuracies is {distance:.3f}.
"""


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
            **integers("d_k", "d_v", "seed"),
            **decimals("test_accuracy", "published", "validation_accuracy"),
            "best_epoch": pl.Int64,
            "epochs": pl.Int64,
            "test_loss": pl.Float64,
            **integers("train_rows", "validation_rows", "test_rows", "vocabulary", "parameters"),
            "precision": pl.String,
            "seconds": pl.Float64,
        }
    }

    words: ClassVar = {"value": "Test accuracy"}
    views: ClassVar = {
        "table_one": View(title="Test accuracy by d_k", table="table_one", listed=True),
        "accuracy": View(
            lines,
            ("d_k", "value", "heads"),
            title="Test accuracy by d_k, measured and published",
            text="Bars are standard errors over seeds; the published table has one seed.",
            table="accuracies",
            also=("source", "error"),
            choices=("task",),
            look={"dash": "source", "error": "error", "log_x": True},
        ),
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
        named = self.accuracies().rename({"heads": "version"})
        rounded = named.with_columns(pl.col("value").round(3))
        index = ["task", "version", "source"]
        wide = rounded.pivot("d_k", index=index, values="value", sort_columns=False)
        sizes = sorted(wide.columns[3:], key=int)
        ordered = wide.sort("task", pl.col("version") == "Add", "source", maintain_order=True)
        return ordered.select(*index, *sizes)

    def subject(self) -> str:
        """Return the tasks."""
        return str(self.provenance["model"]["name"])

    def accuracies(self) -> pl.DataFrame:
        """Return the accuracy of every cell, measured (with its standard error) and published."""
        index = ["task", "d_k", "heads", "standard_error"]
        cells = self.cells().rename({"test_accuracy": "measured"})
        long = cells.unpivot(["measured", "published"], index=index, variable_name="source")
        known = pl.when(source="measured").then("standard_error").fill_null(0)
        return long.drop_nulls("value").with_columns(
            pl.col("heads").cast(pl.String).replace(NAMES), error=known
        )

    def summary(self) -> Finding:
        """Return the range of accuracies, and how far they are from the published ones."""
        cells = self.cells()
        accuracy = cells["test_accuracy"]
        return Finding.of(
            _FINDING,
            "{distance:.3f} | mean distance from the published accuracies",
            runs=len(self.table),
            cells=len(cells),
            least=accuracy.min(),
            most=accuracy.max(),
            distance=(accuracy - cells["published"]).abs().mean(),
        )


class SweepStudy(Study[SweepSettings, EncoderSweep]):
    """Train every combination of tasks, heads, key sizes and seeds, and compare with Table 1 as published.

    Each run has its own folder under ``runs``. An interrupted sweep continues inside the interrupted run.

    Raises:
        InputError: For a task, file, row or setting that cannot be used.
        OutputFolderError: If the folder contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> data, rows = Path(tempfile.mkdtemp()), ['"1","ferries left"', '"2","snow fell"'] * 10
        >>> for part in ("train", "test"):
        ...     _ = (data / f"{part}.csv").write_text(chr(10).join(rows))
        >>> small = {"d_model": 16, "attention_heads": 2, "feed_forward": 16, "epochs": 2, "batch_size": 4}
        >>> sweep = idl.lab.sweep(out=data / "sweep", tasks="yelp", heads="add", d_k=(1, 2), data=data, **small)
        >>> sweep.table.select("task", "heads", "d_k", "seed")
        shape: (2, 4)
        ┌──────┬───────┬─────┬──────┐
        │ task ┆ heads ┆ d_k ┆ seed │
        │ ---  ┆ ---   ┆ --- ┆ ---  │
        │ str  ┆ enum  ┆ i64 ┆ i64  │
        ╞══════╪═══════╪═════╪══════╡
        │ yelp ┆ add   ┆ 1   ┆ 0    │
        │ yelp ┆ add   ┆ 2   ┆ 0    │
        └──────┴───────┴─────┴──────┘
    """

    name = "lab encoder sweep"
    unit = "runs"
    takes = ()
    leaves = "a sweep saves its runs"
    settings_type = SweepSettings
    result_type = EncoderSweep

    def __init__(self, settings: SweepSettings) -> None:
        super().__init__(settings)
        shared = settings.values_of(TrainingSettings)
        self.parts = [
            EncoderSettings(**shared, task=task, heads=heads, d_k=size, seed=seed)
            for task, heads, size, seed in product(
                settings.tasks, settings.heads, settings.d_k, settings.seeds
            )
        ]

    def identity(self) -> Identity:
        """Return where the data come from."""
        return Identity(
            {"name": ", ".join(self.settings.tasks)}, [str(self.settings.data or "hub")]
        )

    def run(self, part: int) -> Output:
        """Return the row of one run."""
        one = self.parts[part]
        name = f"{one.task}-{one.heads}-dk{one.d_k}-seed{one.seed}"
        folder = (self.folder or Path()) / "runs" / name
        trained = run_study(
            TrainStudy(one),
            out=folder,
            resume=True,
            progress=lambda done, steps, note: self.tell(f"{name}: {done} of {steps} {note}"),
        )
        if not self.settings.keep_models:
            Manifest(folder).remove("model/")
        row = {name: trained.metrics.get(name) for name in EncoderSweep.schema["table"]}
        row["published"] = published_accuracy(one.task, one.heads, one.d_k)
        return Output({"table": table_of(EncoderSweep.schema["table"], [row])})


sweep = study_function(SweepStudy, "sweep")
