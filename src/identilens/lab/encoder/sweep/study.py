"""Many training runs, one row each: every task, kind of heads, key size and seed (Bhardwaj et al. 2021, Table 1)."""

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import ClassVar

import polars as pl

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.lab.encoder.readers import splits_of
from identilens.lab.encoder.settings import D_K, EncoderSettings, SweepSettings, TrainingSettings
from identilens.lab.encoder.training import OUTCOME, train_encoder
from identilens.runs.provenance import Identity
from identilens.runs.result import Finding, Result
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import table_of


@cache
def published_accuracies() -> pl.DataFrame:
    """Return Table 1 of the paper: a row for each task and kind of heads, a column for each d_k."""
    return pl.read_csv(Path(__file__).with_name("table1.csv").read_bytes())


def published_accuracy(task: str, heads: str, d_k: int) -> float | None:
    """Return a cell of Table 1, or None if there is none."""
    row = published_accuracies().filter(task=task, heads=heads)
    return row[str(d_k)][0] if d_k in D_K else None


NAMES = {"concat": "Con", "add": "Add"}
"""Kinds of heads as the paper calls them."""
_FINDING = """\
{runs:run} of {cells:cell} (task, heads, d_k): test accuracies from {least:.3f} to {most:.3f}, means over seeds.
The mean distance from the published accuracies, where Table 1 has one, is {distance:.3f}.
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
        (['task', 'heads', 'source', '1'], 1)
    """

    analysis: ClassVar = "lab encoder sweep"
    title: ClassVar = "Encoders by key size"
    schema: ClassVar = {
        "table": {**OUTCOME, "heads": pl.Enum(["concat", "add"]), "published": pl.Float64},
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
            look={"dash": "source", "error": "error", "x_scale": "log"},
        ),
    }

    def cells(self) -> pl.DataFrame:
        """Return one row a cell of Table 1: mean over seeds, its standard error (null for one seed), published."""
        accuracy, cell = pl.col("test_accuracy"), ("task", "heads", "d_k")
        means = self.table.group_by(cell).agg(
            measured=accuracy.mean(),
            standard_error=accuracy.std() / pl.len().sqrt(),
            published=pl.col("published").first(),
        )
        return means.sort(cell)

    def table_one(self) -> pl.DataFrame:
        """Return accuracies by key size, one row for each task, kind of heads and source (measured, published)."""
        wide = self.accuracies().pivot("d_k", index=("task", "heads", "source"), values="value")
        rounded = wide.with_columns(pl.selectors.float().round(3))
        return rounded.sort("task", "heads", "source", descending=[False, True, False])

    def subject(self) -> str:
        """Return the tasks."""
        return str(self.provenance["model"]["name"])

    def accuracies(self) -> pl.DataFrame:
        """Return the accuracy of every cell, measured (with its standard error) and published."""
        index = ["task", "d_k", "heads", "standard_error"]
        long = self.cells().unpivot(["measured", "published"], index=index, variable_name="source")
        known = pl.when(source="measured").then("standard_error").fill_null(0)
        return long.drop_nulls("value").with_columns(
            pl.col("heads").cast(pl.String).replace(NAMES), error=known
        )

    def summary(self) -> Finding:
        """Return the range of accuracies, and how far they are from the published ones."""
        cells = self.cells()
        accuracy = cells["measured"]
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

    Models are not saved. An interrupted sweep goes on with the interrupted run.

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
        return Identity({"name": ", ".join(self.settings.tasks)}, [str(self.settings.data)])

    def run(self, part: int) -> Output:
        """Return the row of one run."""
        settings = self.parts[part]
        name = f"{settings.task}, {settings.heads}, d_k = {settings.d_k}, seed {settings.seed}"
        _, metrics = train_encoder(
            splits_of(settings), settings, lambda note, _: self.tell(f"{name}, {note}")
        )
        published = published_accuracy(settings.task, settings.heads, settings.d_k)
        row = {**metrics, "published": published}
        return Output({"table": table_of(EncoderSweep.schema["table"], [row])})


sweep = study_function(SweepStudy, "sweep")
