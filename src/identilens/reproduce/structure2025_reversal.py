"""The reversal task's two models, trained for both figures of structure2025."""

from collections.abc import Callable
from dataclasses import asdict, replace

import polars as pl

from identilens.studies.reversal.study import TRANSFORMER_RATE, ReversalStudy, reversal_study
from identilens.studies.reversal.training import ReversalSettings

PUBLISHED_ACCURACY = 0.99
PUBLISHED_EPOCHS = 150
PUBLISHED_THRESHOLD = 0.4
"""structure2025, section V."""

Progress = Callable[[int, int, str], None]


def studies(settings: ReversalSettings, progress: Progress | None = None) -> tuple[ReversalStudy, ReversalStudy]:
    """Return the draft's LSTM encoder–decoder and a small transformer, both trained on the same sequences."""

    def telling(name: str) -> Progress:
        def tell(done: int, total: int, note: str) -> None:
            if progress:
                progress(done, total, f"{name}: {note}")

        return tell

    return (
        reversal_study("lstm", settings, telling("LSTM")),
        reversal_study("transformer", replace(settings, learning_rate=TRANSFORMER_RATE), telling("transformer")),
    )


def accuracy_table(found: tuple[ReversalStudy, ...]) -> pl.DataFrame:
    """Return how well each model reverses, beside what the draft says of its own."""
    rows = [("draft: LSTM", PUBLISHED_EPOCHS, None, PUBLISHED_ACCURACY, None, None, None)]
    rows += [
        (
            one.model, len(one.course), one.course["validation_accuracy"][-1], one.accuracy, one.whole,
            None if one.written != one.written else one.written, one.seconds,
        )
        for one in found
    ]  # fmt: skip
    schema = {
        "model": pl.String, "epochs": pl.Int64, "validation_accuracy": pl.Float64, "test_accuracy": pl.Float64,
        "whole_sequences": pl.Float64, "written_alone": pl.Float64, "seconds": pl.Float64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def recorded(settings: ReversalSettings) -> dict[str, object]:
    """Return the settings as the record keeps them."""
    return {**asdict(settings), "transformer_learning_rate": TRANSFORMER_RATE}
