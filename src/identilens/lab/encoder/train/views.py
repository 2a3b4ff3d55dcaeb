"""Charts of a training run."""

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines


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
