"""The reversal task's two models, trained for both figures of structure2025."""

from pathlib import Path
from typing import Any

import polars as pl

from identilens.lab.reversal.result import Reversal
from identilens.lab.reversal.settings import RATES, ReversalSettings, TaskSettings
from identilens.lab.reversal.study import train_reversal
from identilens.runs.progress import Progress
from identilens.runs.tables import table_of

PUBLISHED_ACCURACY = 0.99
PUBLISHED_EPOCHS = 150
"""structure2025, section V."""

_ACCURACIES = {
    "model": pl.String, "epochs": pl.Int64, "validation_accuracy": pl.Float64, "test_accuracy": pl.Float64,
    "whole_sequences": pl.Float64, "written_alone": pl.Float64, "seconds": pl.Float64,
}  # fmt: skip


def trained(
    settings: TaskSettings, out: Path | None, *, progress: Progress | None = None, **run: bool
) -> list[Reversal]:
    """Return the draft's LSTM encoder–decoder and a small transformer, both trained on the same sequences.

    The runs are in ``out/lstm`` and ``out/transformer``, and are not repeated with ``resume``.
    """
    runs = []
    for place, model in enumerate(RATES):

        def tell(done: int, _total: int, note: str, place: int = place, model: str = model) -> None:
            if progress:
                progress(place + done, len(RATES), f"{model}: {note}" if note else "")

        chosen = ReversalSettings(model=model, **settings.values_of(TaskSettings))
        runs.append(train_reversal(settings=chosen, out=out and out / model, progress=tell, **run))
    return runs


def accuracy_table(runs: list[Reversal]) -> pl.DataFrame:
    """Return the accuracy of each model, and the accuracy in the draft."""
    draft = dict.fromkeys(_ACCURACIES) | {
        "model": "draft: LSTM", "epochs": PUBLISHED_EPOCHS, "test_accuracy": PUBLISHED_ACCURACY
    }  # fmt: skip
    names = {"accuracy": "test_accuracy", "whole": "whole_sequences", "written": "written_alone"}
    return pl.concat([table_of(_ACCURACIES, [draft]), *(one.table.rename(names) for one in runs)])


def recorded(settings: TaskSettings) -> dict[str, Any]:
    """Return the settings for the record."""
    values = settings.recorded()
    rate = values.pop("learning_rate")
    models = [ReversalSettings(model=model, learning_rate=rate) for model in RATES]
    return values | {f"learning_rate of the {model.model}": model.rate for model in models}
