"""``identilens reproduce structure2025-figure1`` and ``structure2025-figure2``: the reversal task."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from identilens.cli.common import progress
from identilens.cli.reproduce import ReproductionOut, finish
from identilens.reproduce.record import Reproduction
from identilens.reproduce.structure2025_figure1 import structure2025_figure1
from identilens.reproduce.structure2025_figure2 import structure2025_figure2
from identilens.studies.reversal.training import ReversalSettings

_DEFAULT = ReversalSettings()

EpochsOption = Annotated[int, typer.Option("--epochs", min=1, help="Epochs at most; the draft trains for 150.")]
TrainOption = Annotated[int, typer.Option("--train", min=1, help="Sequences to train on.")]
HeldOutOption = Annotated[int, typer.Option("--held-out", min=1, help="Sequences to validate and to test with.")]
LengthOption = Annotated[int, typer.Option("--length", min=2, help="Tokens in a sequence; the draft's Fig. 1 has 20.")]
HiddenOption = Annotated[int, typer.Option("--hidden", min=4, help="Size of the LSTMs and of the transformer.")]
InputsOption = Annotated[int, typer.Option("--inputs", min=1, help="Inputs that make W; the draft takes 100.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of data, weights and order.")]


def _command(make: Callable[..., Reproduction], help_text: str) -> Callable[..., None]:
    def command(
        out: ReproductionOut,
        length: LengthOption = _DEFAULT.length,
        epochs: EpochsOption = _DEFAULT.epochs,
        train: TrainOption = _DEFAULT.train,
        held_out: HeldOutOption = _DEFAULT.held_out,
        hidden: HiddenOption = _DEFAULT.hidden,
        inputs: InputsOption = _DEFAULT.inputs,
        seed: SeedOption = _DEFAULT.seed,
    ) -> None:
        settings = replace(
            _DEFAULT, length=length, epochs=epochs, train=train, held_out=held_out, hidden=hidden, inputs=inputs,
            seed=seed,
        )  # fmt: skip
        with progress("epochs") as update:
            found = make(settings, update)
        finish(found, out)

    command.__doc__ = help_text
    return command


COMMANDS = {
    "structure2025-figure1": _command(
        structure2025_figure1, "Train models to reverse sequences, and draw their cross attention on one input."
    ),
    "structure2025-figure2": _command(
        structure2025_figure2, "Train models to reverse sequences, and sweep the threshold of their structure W."
    ),
}
"""By name on the command line."""
