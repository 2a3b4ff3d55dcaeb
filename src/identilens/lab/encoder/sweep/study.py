"""Many training runs, one row each: every task, kind of heads, key size and seed (Bhardwaj et al. 2021, Table 1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from identilens.errors import SettingError
from identilens.lab.encoder.published import D_K, published_accuracy
from identilens.lab.encoder.readers import Splits, read_splits
from identilens.lab.encoder.settings import (
    EncoderSettings,
    HeadsName,
    TaskName,
    TrainingSettings,
    full_name,
)
from identilens.lab.encoder.sweep.result import EncoderSweep
from identilens.lab.encoder.tasks import task_named
from identilens.lab.encoder.train.study import TrainStudy
from identilens.runs.files import Manifest
from identilens.runs.provenance import Identity
from identilens.runs.settings import LIST, NOT_RECORDED
from identilens.runs.study import Output, Study, run_study, study_function
from identilens.runs.tables import table_of


@dataclass(frozen=True, kw_only=True)
class SweepSettings(TrainingSettings):
    """The grid of runs, and the settings that all runs share.

    Attributes:
        tasks: Tasks, separated by commas.
        heads: Kinds of heads, separated by commas: con, add.
        d_k: Sizes of queries and keys, such as 1,2,64.
        seeds: Seeds, such as 0-4, with one run for each; Table 1 has one seed.
        keep_models: Keep the model of each run. By default it is deleted after the run.
    """

    tasks: Annotated[tuple[TaskName, ...], LIST]
    heads: Annotated[tuple[HeadsName, ...], LIST] = ("concat", "add")
    d_k: Annotated[tuple[Annotated[int, Ge(1)], ...], LIST] = D_K
    seeds: Annotated[tuple[int, ...], LIST] = (0,)
    keep_models: Annotated[bool, NOT_RECORDED] = False

    def check(self) -> None:
        """Check that there is something to train, and put the grid in order."""
        for name in ("tasks", "heads", "d_k", "seeds"):
            if not getattr(self, name):
                raise SettingError(name, "with at least one value", ())
        object.__setattr__(self, "heads", tuple(dict.fromkeys(map(full_name, self.heads))))
        object.__setattr__(self, "d_k", tuple(sorted(self.d_k)))


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
        self.grid = [
            EncoderSettings(**shared, task=task, heads=heads, d_k=size, seed=seed)
            for task, heads, size, seed in product(
                settings.tasks, settings.heads, settings.d_k, settings.seeds
            )
        ]
        # A task's parts are read once for the runs that share them.
        self._splits = lru_cache(maxsize=1)(self._read)

    def identity(self) -> Identity:
        """Return where the data come from."""
        return Identity(
            {"name": ", ".join(self.settings.tasks)}, [str(self.settings.data or "hub")]
        )

    def sizes(self) -> Sequence[int]:
        """Return one run for each part."""
        return [1] * len(self.grid)

    def run(self, part: int) -> Output:
        """Return the row of one run."""
        one = self.grid[part]
        folder = (
            (self.folder or Path()) / "runs" / f"{one.task}-{one.heads}-dk{one.d_k}-seed{one.seed}"
        )
        name = f"{one.task}, {one.heads}, d_k = {one.d_k}, seed {one.seed}"

        def told(done: int, steps: int, note: str) -> None:
            self.tell(f"{name}: step {done} of {steps}; {note}".rstrip("; "))

        study = TrainStudy(one, self._splits(one.task, one.seed))
        # The sweep itself has already checked the versions of the libraries.
        trained = run_study(
            study, out=folder, resume=True, allow_version_change=True, progress=told
        )
        if not self.settings.keep_models:
            Manifest(folder).remove("model/")
        row = {name: trained.metrics.get(name) for name in EncoderSweep.schema["table"]}
        row["published"] = published_accuracy(one.task, one.heads, one.d_k)
        return Output({"table": table_of(EncoderSweep.schema["table"], [row])})

    def _read(self, task: str, seed: int) -> Splits:
        settings = self.settings
        return read_splits(
            task_named(task), settings.data, hub=settings.hub, seed=seed, limit=settings.limit
        )


sweep = study_function(SweepStudy, "sweep")
