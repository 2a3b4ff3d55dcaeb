"""``identilens reproduce structure2025-figure1`` and ``structure2025-figure2``: the reversal task."""

from dataclasses import replace
from typing import Annotated

import typer

from identilens.cli.common import progress
from identilens.cli.reproduce import ReproductionOut, finish
from identilens.reproduce.structure2025_figure1 import structure2025_figure1
from identilens.reproduce.structure2025_figure2 import structure2025_figure2
from identilens.structure.reversal_training import ReversalSettings

_DEFAULT = ReversalSettings()

EpochsOption = Annotated[int, typer.Option("--epochs", min=1, help="Epochs at most; the draft trains for 150.")]
TrainOption = Annotated[int, typer.Option("--train", min=1, help="Sequences to train on.")]
HeldOutOption = Annotated[int, typer.Option("--held-out", min=1, help="Sequences to validate and to test with.")]
LengthOption = Annotated[int, typer.Option("--length", min=2, help="Tokens in a sequence; the draft's Fig. 1 has 20.")]
HiddenOption = Annotated[int, typer.Option("--hidden", min=4, help="Size of the LSTMs and of the transformer.")]
InputsOption = Annotated[int, typer.Option("--inputs", min=1, help="Inputs that make W; the draft takes 100.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of data, weights and order.")]


def figure1(
    out: ReproductionOut,
    length: LengthOption = _DEFAULT.length,
    epochs: EpochsOption = _DEFAULT.epochs,
    train: TrainOption = _DEFAULT.train,
    held_out: HeldOutOption = _DEFAULT.held_out,
    hidden: HiddenOption = _DEFAULT.hidden,
    inputs: InputsOption = _DEFAULT.inputs,
    seed: SeedOption = _DEFAULT.seed,
) -> None:
    """Train models to reverse sequences, and draw their cross attention on one input (structure2025, Fig. 1)."""
    settings = _settings(length, epochs, train, held_out, hidden, inputs, seed)
    with progress("epochs") as update:
        found = structure2025_figure1(settings, update)
    finish(found, out)


def figure2(
    out: ReproductionOut,
    length: LengthOption = _DEFAULT.length,
    epochs: EpochsOption = _DEFAULT.epochs,
    train: TrainOption = _DEFAULT.train,
    held_out: HeldOutOption = _DEFAULT.held_out,
    hidden: HiddenOption = _DEFAULT.hidden,
    inputs: InputsOption = _DEFAULT.inputs,
    seed: SeedOption = _DEFAULT.seed,
) -> None:
    """Train models to reverse sequences, and sweep the threshold of their structure W (structure2025, Fig. 2)."""
    settings = _settings(length, epochs, train, held_out, hidden, inputs, seed)
    with progress("epochs") as update:
        found = structure2025_figure2(settings, update)
    finish(found, out)


def _settings(
    length: int, epochs: int, train: int, held_out: int, hidden: int, inputs: int, seed: int
) -> ReversalSettings:
    return replace(
        _DEFAULT, length=length, epochs=epochs, train=train, held_out=held_out, hidden=hidden, inputs=inputs, seed=seed
    )


COMMANDS = {"structure2025-figure1": figure1, "structure2025-figure2": figure2}
