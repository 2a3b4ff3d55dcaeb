"""Training one identifiable encoder (Bhardwaj et al. 2021, section 6)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import ceil
from pathlib import Path
from typing import Any

from identilens.errors import InputError
from identilens.lab.encoder.checkpoints import CHECKPOINTS, last_whole
from identilens.lab.encoder.readers import Splits, read_splits
from identilens.lab.encoder.settings import EncoderSettings
from identilens.lab.encoder.tasks import task_named
from identilens.lab.encoder.train.result import EncoderRun
from identilens.lab.encoder.training import processes, train_encoder
from identilens.runs.files import Manifest
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, Tables, study_function
from identilens.runs.tables import table_of


class TrainStudy(Study[EncoderSettings, EncoderRun]):
    """Train an identifiable encoder on one of ten tasks; save the model, the metrics of every epoch and the accuracy.

    The model of the best epoch is saved to ``model`` in the folder (weights, configuration, tokenizer, for
    `identilens.load`). During training, ``checkpoints`` are saved too; an interrupted run continues from the last one.
    If several processes are launched (torchrun), they share each batch; the first process writes and reports.

    Raises:
        InputError: For a task, file, row or setting that cannot be used, if accelerate is not installed, or without a
            folder.
        OutputFolderError: If the folder contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> data, rows = Path(tempfile.mkdtemp()), ['"1","ferries left"', '"2","snow fell"'] * 10
        >>> for part in ("train", "test"):
        ...     _ = (data / f"{part}.csv").write_text(chr(10).join(rows))
        >>> small = {"d_model": 16, "attention_heads": 2, "feed_forward": 16, "epochs": 2, "batch_size": 4}
        >>> run = idl.lab.train(out=data / "run", task="yelp", data=data, d_k=2, **small)
        >>> run.metrics["train_rows"], run.metrics["d_k"], len(run.table)
        (14, 2, 2)
        >>> idl.load(run.model_path).model.config.heads
        'concat'
    """

    name = "lab encoder train"
    unit = "steps"
    takes = ()
    leaves = "training saves a model"
    settings_type = EncoderSettings
    result_type = EncoderRun

    def __init__(self, settings: EncoderSettings, splits: Splits | None = None) -> None:
        super().__init__(settings)
        self.task = task_named(settings.task)
        self.splits = splits or read_splits(
            self.task, settings.data, hub=settings.hub, seed=settings.seed, limit=settings.limit
        )
        self.processes = processes()
        self.reports = bool(self.processes.is_main_process)
        if settings.batch_size % self.processes.num_processes:
            raise InputError(
                f"{self.processes.num_processes} processes cannot share batches of {settings.batch_size} evenly. "
                "Choose a multiple of their number."
            )

    def identity(self) -> Identity:
        """Return the texts and labels of all parts."""
        parts = (self.splits.train, self.splits.validation, self.splits.test)
        name = f"{self.task.name}, {self.settings.heads}, d_k = {self.settings.d_k}"
        return Identity({"name": name}, [repr((part.texts, part.labels)) for part in parts])

    def sizes(self) -> Sequence[int]:
        """Return the number of steps."""
        return [self.settings.epochs * ceil(len(self.splits.train) / self.settings.batch_size)]

    def in_turn(self) -> AbstractContextManager[Any]:
        """Let the first process make the folder."""
        return self.processes.main_process_first()

    def wait(self) -> None:
        """Wait for all processes."""
        self.processes.wait_for_everyone()

    def begin(self, folder: RunFolder | None) -> None:
        """Find the last complete checkpoint of an interrupted run."""
        super().begin(folder)
        with self.in_turn():
            self.checkpoint = last_whole(self.folder or Path())

    def run(self, part: int) -> Output:
        """Return the epochs and the metrics."""
        table, metrics = train_encoder(
            self.folder or Path(),
            self.task,
            self.splits,
            self.settings,
            self.processes.num_processes,
            lambda done, note: self.tell(note, done),
            self.checkpoint,
        )
        return Output(
            {"table": table, "outcome": table_of(EncoderRun.schema["outcome"], [metrics])}
        )

    def finish(self, tables: Tables) -> Output:
        """Delete the checkpoints, which are not needed after the last part."""
        Manifest(self.folder or Path()).remove(f"{CHECKPOINTS}/")
        return Output(tables)


train = study_function(TrainStudy, "train")
