"""What the reversal task and its models can be told."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from identilens.errors import SettingError
from identilens.runs.settings import Settings

Reverser = Literal["lstm", "transformer"]
TRANSFORMER_HEADS = 4
RATES: dict[Reverser, float] = {"lstm": 3e-3, "transformer": 1e-3}
"""Learning rate of each model where none is given."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings(Settings):
    """What the draft says about the task (length, epochs, accuracy), and what it leaves open.

    Attributes:
        length: Tokens in a sequence (structure2025, Fig. 1).
        vocabulary: Number of different tokens.
        hidden: Size of the LSTMs, or d_model of the transformer.
        train: Sequences to train on.
        held_out: Sequences for validation, and as many for the test.
        batch_size: Sequences in a step.
        learning_rate: Of Adam; 3e-3 for the LSTM and 1e-3 for the transformer by default.
        epochs: Epochs at most (the draft has 150).
        accuracy: Share of tokens right on validation at which training stops.
        inputs: Test inputs whose attention makes W (the draft has 100).
        seed: Of data, weights and order.
    """

    length: Annotated[int, Ge(2)] = 20
    vocabulary: Annotated[int, Ge(2)] = 10
    hidden: Annotated[int, Ge(1)] = 64
    train: Annotated[int, Ge(1)] = 10_000
    held_out: Annotated[int, Ge(1)] = 1000
    batch_size: Annotated[int, Ge(1)] = 64
    learning_rate: Annotated[float | None, Gt(0)] = None
    epochs: Annotated[int, Ge(1)] = 150
    accuracy: Annotated[float, Ge(0)] = 0.995
    inputs: Annotated[int, Ge(1)] = 100
    seed: Annotated[int, Ge(0)] = 0

    def check(self) -> None:
        """Check that there are as many test inputs as W is made of."""
        if self.inputs > self.held_out:
            raise SettingError("inputs", f"of at most held_out = {self.held_out} test sequences", self.inputs)


@dataclass(frozen=True, kw_only=True)
class ReversalSettings(TaskSettings):
    """Which model learns the task.

    Attributes:
        model: LSTM encoder and decoder as in the draft, or a transformer with one layer of each.
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
            raise SettingError("hidden", f"as a multiple of the transformer's {TRANSFORMER_HEADS} heads", self.hidden)
