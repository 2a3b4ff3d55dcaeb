"""Options of token identifiability."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt, Le
from cyclopts import Parameter

from identilens.errors import SettingError
from identilens.runs.settings import (
    LIST,
    NOT_RECORDED,
    AboveZero,
    NonNegative,
    Numbers,
    Positive,
    Settings,
)

Experiment = Literal["same-layer", "across-layers", "layer-to-layer", "neighbours", "data-share"]
ProbeName = Literal["naive", "linear", "mlp"]
Distance = Literal["cosine", "l2"]

_NEGATIVE = Parameter(
    allow_leading_hyphen=True
)  # A list on the command line may begin with a negative number.


@dataclass(frozen=True, kw_only=True)
class TokenSettings(Settings):
    """Which tokens are recovered from which hidden states, and how probes are trained.

    Attributes:
        experiment: Which tokens are recovered from which hidden states.
        probes: Maps from hidden state to input.
        distances: Distances of loss and look-up.
        folds: Number of random 70/15/15 splits of the sentences.
        mlp_folds: Number of folds for the MLP, the slowest probe; the first ones are used.
        layers: Layers to train on, counted from 1. Default: all; for data-share the last but one.
        offsets: Relative positions of the tokens to recover, for neighbours.
        shares: Shares of the training sentences, for data-share.
        learning_rates: Learning rates of trained probes, one or several to search on the first fold;
            the paper's seven by default.
        batch_size: Number of tokens in a training step.
        patience: Number of epochs without a lower validation loss after which training stops.
        max_epochs: Largest number of epochs; the paper gives no limit.
        hidden_units: Width of the MLP's hidden layer.
        max_length: Cut longer texts to this many tokens.
        seed: Seed of splits, initial weights and batches.
        states: Folder where hidden states are stored for later runs; states/ in the run's folder by default.
    """

    experiment: Experiment = "same-layer"
    probes: Annotated[tuple[ProbeName, ...], LIST] = ("naive", "linear")
    distances: Annotated[tuple[Distance, ...], LIST] = ("cosine", "l2")
    folds: Positive = 10
    mlp_folds: Positive | None = None
    layers: Numbers | None = None
    offsets: Annotated[tuple[int, ...], LIST, _NEGATIVE] = (-3, -2, -1, 1, 2, 3)
    shares: Annotated[tuple[Annotated[float, Gt(0), Le(1)], ...], LIST] = (0.5, 0.8, 0.9, 1.0)
    learning_rates: Annotated[tuple[AboveZero, ...], LIST] | None = None
    batch_size: Positive = 256
    patience: Positive = 20
    max_epochs: Positive = 1000
    hidden_units: Positive = 1000
    max_length: Positive | None = None
    seed: NonNegative = 0
    states: Annotated[Path | None, NOT_RECORDED] = None

    def check(self) -> None:
        """Check that there is something to do."""
        for name in ("probes", "distances", "offsets", "shares"):
            if getattr(self, name) == ():
                raise SettingError(name, "with at least one value", ())
        if self.mlp_folds is not None and self.mlp_folds > self.folds:
            raise SettingError("mlp_folds", f"of at most the {self.folds} folds", self.mlp_folds)
        if self.experiment == "neighbours" and 0 in self.offsets:
            raise SettingError(
                "offsets", "other than 0, which is the experiment same-layer", self.offsets
            )
