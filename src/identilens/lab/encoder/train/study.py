"""Training one identifiable encoder (Bhardwaj et al. 2021, section 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.lab.encoder.readers import splits_of
from identilens.lab.encoder.settings import EncoderSettings
from identilens.lab.encoder.training import OUTCOME, train_encoder
from identilens.runs.provenance import Identity
from identilens.runs.result import Finding, Result
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import decimals, table_of

_FINDING = """\
{task}, {heads}, d_k = {d_k}, d_v = {d_v}: test accuracy {test_accuracy:.3f} at epoch {best_epoch} of {epochs} \
(validation {validation_accuracy:.3f}); {train_rows:,} training, {validation_rows:,} validation, {test_rows:,} test \
rows.
"""
_TILES = """\
{test_accuracy:.3f} | test accuracy
{best_epoch} | best epoch
"""


@dataclass(frozen=True, kw_only=True)
class EncoderRun(Result):
    """One training run (Bhardwaj et al. 2021, section 6).

    Attributes:
        table: One row an epoch.
        outcome: One row: test accuracy at the best validation epoch, with sizes, settings and counts.
        folder: Where it was read from; the model is in ``folder/model`` unless it was dropped.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> data, rows = Path(tempfile.mkdtemp()), ['"1","ferries left"', '"2","snow fell"'] * 10
        >>> for part in ("train", "test"):
        ...     _ = (data / f"{part}.csv").write_text(chr(10).join(rows))
        >>> small = {"d_model": 16, "attention_heads": 2, "feed_forward": 16, "epochs": 2, "batch_size": 4}
        >>> run = idl.lab.train(out=data / "run", task="yelp", data=data, **small)
        >>> run.table.columns
        ['epoch', 'train_loss', 'validation_loss', 'validation_accuracy']
        >>> run.model_path.name, run.metrics["test_rows"]
        ('model', 20)
    """

    analysis: ClassVar = "lab encoder train"
    title: ClassVar = "Trained encoder"
    schema: ClassVar = {
        "table": {
            "epoch": pl.Int64,
            **decimals("train_loss", "validation_loss", "validation_accuracy"),
        },
        "outcome": OUTCOME,
    }

    words: ClassVar = {"value": "Cross-entropy", "measure": "Part"}
    views: ClassVar = {
        "accuracy": View(
            lines,
            ("epoch", "validation_accuracy"),
            title="Validation accuracy by epoch",
            text="The model of the best epoch is saved and tested.",
        ),
        "loss": View(
            lines,
            ("epoch", ("train_loss", "validation_loss"), "measure"),
            title="Cross-entropy by epoch",
            listed=True,
        ),
    }

    outcome: pl.DataFrame

    @property
    def metrics(self) -> dict[str, Any]:
        """Test accuracy at the best validation epoch, with sizes, settings and counts."""
        return self.outcome.row(0, named=True)

    @property
    def model_path(self) -> Path:
        """Folder of the trained model, for `identilens.load`."""
        return (self.folder or Path()) / "model"

    def subject(self) -> str:
        """Return the name of the trained model."""
        return str(self.provenance["model"]["name"])

    def summary(self) -> Finding:
        """Return the test accuracy at the best validation epoch."""
        return Finding.of(_FINDING, _TILES, **self.metrics)


class TrainStudy(Study[EncoderSettings, EncoderRun]):
    """Train an identifiable encoder on one of ten tasks; save the model, the metrics of every epoch and the accuracy.

    The model of the best epoch is saved to ``model`` in the folder (weights, configuration, tokenizer, for
    `identilens.load`).

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
    unit = "epochs"
    leaves = "training saves a model"
    settings_type = EncoderSettings
    result_type = EncoderRun

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.splits = splits_of(settings)

    def identity(self) -> Identity:
        """Return the texts and labels of all parts."""
        parts = [tuple(zip(*part, strict=True)) for part in self.splits.values()]
        name = f"{self.settings.task}, {self.settings.heads}, d_k = {self.settings.d_k}"
        return Identity({"name": name}, list(map(repr, parts)))

    def sizes(self) -> Sequence[int]:
        """Return the number of epochs."""
        return [self.settings.epochs]

    def run(self, part: int) -> Output:
        """Return the epochs and the metrics."""
        model = (self.folder or Path()) / "model"
        table, metrics = train_encoder(self.splits, self.settings, self.tell, model)
        outcome = table_of(OUTCOME, [metrics])
        return Output({"table": table, "outcome": outcome})


train = study_function(TrainStudy, "train")
