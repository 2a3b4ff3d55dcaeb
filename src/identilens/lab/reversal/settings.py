"""Options of the reversal task (structure2025, V). Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from identilens.errors import SettingError
from identilens.runs.settings import NonNegative, Positive, Settings, TwoOrMore

Reverser = Literal["lstm", "transformer"]
TRANSFORMER_HEADS = 4
RATES: dict[Reverser, float] = {"lstm": 3e-3, "transformer": 1e-3}
"""Default learning rate of each model."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings(Settings):
    """The settings that the draft gives (length, epochs, accuracy), and those that it does not give.

    Attributes:
        length: Number of tokens in a sequence (structure2025, Fig. 1).
        vocabulary: Number of different tokens.
        hidden: Size of the LSTMs, or d_model of the transformer.
        train: Number of training sequences.
        held_out: Number of validation sequences; the test has as many.
        batch_size: Number of sequences in a training step.
        learning_rate: Learning rate of Adam; 3e-3 for the LSTM and 1e-3 for the transformer by default.
        epochs: Largest number of epochs (the draft has 150).
        accuracy: Training stops at this share of correct tokens on validation.
        inputs: Number of test inputs whose attention gives W (the draft has 100).
        seed: Seed of data, initial weights and batches.
    """

    length: TwoOrMore = 20
    vocabulary: TwoOrMore = 10
    hidden: Positive = 64
    train: Positive = 10_000
    held_out: Positive = 1000
    batch_size: Positive = 64
    learning_rate: Annotated[float | None, Gt(0)] = None
    epochs: Positive = 150
    accuracy: Annotated[float, Ge(0)] = 0.995
    inputs: Positive = 100
    seed: NonNegative = 0

    def check(self) -> None:
        """Check that the test has enough inputs for W."""
        if self.inputs > self.held_out:
            raise SettingError(
                "inputs", f"of at most held_out = {self.held_out} test sequences", self.inputs
            )


@dataclass(frozen=True, kw_only=True)
class ReversalSettings(TaskSettings):
    """The model that learns the task.

    Attributes:
        model: LSTM encoder and decoder as in the draft, or a transformer with one encoder and one decoder layer.
    """

    model: Reverser = "lstm"

    @property
    def rate(self) -> float:
        """Learning rate of the model."""
        return RATES[self.model] if self.learning_rate is None else self.learning_rate

    def check(self) -> None:
        """Check that the transformer's heads have one size."""
        super().check()
        if self.model == "transformer" and self.hidden % TRANSFORMER_HEADS:
            raise SettingError(
                "hidden",
                f"as a multiple of the transformer's {TRANSFORMER_HEADS} heads",
                self.hidden,
            )
