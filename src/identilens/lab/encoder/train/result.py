"""The result of training one identifiable encoder: metrics of every epoch, test accuracy, and where the model is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines
from identilens.errors import InputError
from identilens.runs.result import Finding, Result


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
            "train_loss": pl.Float64,
            "validation_loss": pl.Float64,
            "validation_accuracy": pl.Float64,
        },
        "outcome": {
            "task": pl.String,
            "heads": pl.String,
            "d_k": pl.Int64,
            "d_v": pl.Int64,
            "layers": pl.Int64,
            "d_model": pl.Int64,
            "attention_heads": pl.Int64,
            "feed_forward": pl.Int64,
            "block": pl.String,
            "initial_std": pl.Float64,
            "logit_scale": pl.String,
            "dropout": pl.Float64,
            "max_length": pl.Int64,
            "max_words": pl.Int64,
            "epochs": pl.Int64,
            "batch_size": pl.Int64,
            "learning_rate": pl.Float64,
            "precision": pl.String,
            "limit": pl.Int64,
            "seed": pl.Int64,
            "best_epoch": pl.Int64,
            "validation_accuracy": pl.Float64,
            "test_accuracy": pl.Float64,
            "test_loss": pl.Float64,
            "train_rows": pl.Int64,
            "validation_rows": pl.Int64,
            "test_rows": pl.Int64,
            "vocabulary": pl.Int64,
            "parameters": pl.Int64,
            "processes": pl.Int64,
            "seconds": pl.Float64,
        },
    }

    outcome: pl.DataFrame

    @property
    def metrics(self) -> dict[str, Any]:
        """Test accuracy at the best validation epoch, with sizes, settings and counts."""
        return self.outcome.row(0, named=True)

    @property
    def model_path(self) -> Path:
        """Folder of the trained model, for `identilens.load`.

        Raises:
            InputError: If the result was not read from a folder.
        """
        if self.folder is None:
            raise InputError(
                "this result was not read from a folder; load it with EncoderRun.load(folder)."
            )
        return self.folder / "model"

    def subject(self) -> str:
        """Return the name of the trained model."""
        return str(self.provenance["model"]["name"])

    def summary(self) -> Finding:
        """Return the finding: test accuracy at the best validation epoch."""
        row = self.metrics
        text = (
            f"{row['task']}, {row['heads']}, d_k = {row['d_k']}, d_v = {row['d_v']}: test accuracy "
            f"{row['test_accuracy']:.3f} at epoch {row['best_epoch']} of {row['epochs']} "
            f"(validation {row['validation_accuracy']:.3f}); {row['train_rows']:,} training, "
            f"{row['validation_rows']:,} validation, {row['test_rows']:,} test rows."
        )
        headline = (
            (f"{row['test_accuracy']:.3f}", "test accuracy"),
            (str(row["best_epoch"]), "best epoch"),
        )
        return Finding(
            text, {name: row[name] for name in ("test_accuracy", "best_epoch")}, headline
        )

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the epochs."""
        return {"By epoch": self.table}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``accuracy`` and ``loss`` by epoch."""
        return {"accuracy": accuracy(self.table), "loss": losses(self.table)}


def accuracy(epochs: pl.DataFrame) -> AnyChart:
    """Return validation accuracy by epoch."""
    drawn = epochs.select("epoch", "validation_accuracy")
    return lines(
        drawn,
        "epoch",
        "validation_accuracy",
        x_title="Epoch",
        y_title="Accuracy",
        title="Validation accuracy by epoch",
    )


def losses(epochs: pl.DataFrame) -> AnyChart:
    """Return training and validation loss by epoch."""
    long = epochs.select("epoch", training="train_loss", validation="validation_loss")
    drawn = long.unpivot(
        ["training", "validation"], index="epoch", variable_name="part", value_name="loss"
    )
    return lines(
        drawn,
        "epoch",
        "loss",
        "part",
        x_title="Epoch",
        y_title="Cross-entropy",
        color_title="Part",
        title="Cross-entropy by epoch",
    )
