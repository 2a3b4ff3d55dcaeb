"""Options of the Dyck laboratory, checked before anything runs. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from identilens.errors import SettingError
from identilens.runs.settings import (
    NOT_RECORDED,
    AboveZero,
    Numbers,
    Positive,
    Settings,
    TwoOrMore,
)

Data = Literal["complete", "prefixes"]


@dataclass(frozen=True, kw_only=True)
class DyckTraining(Settings):
    """One way to train (Wen et al. 2023, section 4, D.1, D.2).

    Attributes:
        length: Number of brackets in a training sequence.
        data: Balanced words (complete), or prefixes by Definition 1 (prefixes).
        tokens: Number of brackets in the training set.
        epochs: Number of passes over the training set.
        batch_size: Number of sequences in a training step.
        learning_rate: Learning rate of AdamW at the start. It decreases as a cosine, epoch by epoch.
        weight_decay: Weight decay of AdamW. It is decoupled: not an L2 term of the loss.
        attention: Train queries and keys (learned), or keep them at zero, so that attention is uniform (uniform).
        contrast: Weight λ of the contrastive term (Eq. 22); the paper uses 0.3.
    """

    length: TwoOrMore = 28
    data: Data = "complete"
    tokens: TwoOrMore = 100_000
    epochs: Positive = 40
    batch_size: Positive = 100
    learning_rate: AboveZero = 3e-3
    weight_decay: Annotated[float, Ge(0)] = 0.0
    attention: Literal["learned", "uniform"] = "learned"
    contrast: Annotated[float, Ge(0)] = 0.0

    def check(self) -> None:
        """Check that there are balanced words of the length, and at least one sequence."""
        super().check()
        if self.data == "complete" and self.length % 2:
            raise SettingError("length", "even for complete words", self.length)
        if self.tokens < self.length:
            raise SettingError(
                "tokens", f"of at least {self.length}, the length of a sequence", self.tokens
            )

    @property
    def training_sequences(self) -> int:
        """Number of sequences in the training set."""
        return self.tokens // self.length


@dataclass(frozen=True, kw_only=True)
class Measuring(Settings):
    """Numbers and lengths of the sequences on which models are measured.

    Attributes:
        sequences: Number of sequences for the accuracy in distribution.
        long_sequences: Number of sequences for the length generalisation.
        lengths: Numbers of brackets in the shortest and the longest of these, such as 400-500.
        head_sequences: Number of sequences on which the attention of heads is changed.
        draws: Number of random patterns that replace a head's attention.
    """

    sequences: Positive = 1000
    long_sequences: Positive = 100
    lengths: Annotated[Numbers, Ge(2)] = (400, 500)
    head_sequences: Positive = 100
    draws: Positive = 3

    def check(self) -> None:
        """Keep the shortest and the longest length."""
        super().check()
        object.__setattr__(self, "lengths", (min(self.lengths), max(self.lengths)))


@dataclass(frozen=True)
class DyckSetting:
    """One kind of model, trained in one way.

    Attributes:
        name: Name in tables and figures.
        config: Options of `DyckConfig`.
        training: Data, schedule and loss.
    """

    name: str
    config: dict[str, Any]
    training: DyckTraining


@dataclass(frozen=True, kw_only=True)
class DyckTrainSettings(DyckTraining, Measuring):
    """The models, their training, and their seeds.

    Attributes:
        types: Number of bracket types.
        depth: Largest number of open brackets.
        layers: Number of layers; 1 with a minimal first layer.
        heads: Number of heads in a layer.
        hidden: Size of hidden states and feed-forward block.
        block: Standard block (gpt), the block of the paper's Eq. 6 (paper), or attention alone (minimal).
        first_layer: Learned token embeddings, or a minimal first layer by Eq. 19, 20 or 21.
        positions: Position encoding.
        seeds: Seeds of initial weights and batches, such as 0-29.
        at_once: Number of seeds in one batched computation; all by default.
        device: Device to train on.
    """

    types: Positive = 2
    depth: Positive = 4
    layers: Positive = 2
    heads: Positive = 1
    hidden: Positive = 50
    block: Literal["gpt", "paper", "minimal"] = "gpt"
    first_layer: Literal["learned", "one-hot", "type-depth", "angle"] = "learned"
    positions: Literal["none", "linear"] = "none"
    seeds: Numbers = tuple(range(10))
    at_once: Positive | None = None
    device: Annotated[str, NOT_RECORDED] = "cpu"

    def check(self) -> None:
        """Check that there is a seed; check the settings of training and measuring too."""
        super().check()
        if not self.seeds:
            raise SettingError("seeds", "with at least one value", self.seeds)

    def kind(self) -> DyckSetting:
        """Return the one kind of model that the settings describe."""
        layers = "1 layer" if self.layers == 1 else f"{self.layers:,} layers"
        return DyckSetting(
            f"{self.types} types, depth {self.depth}, {layers}",
            {
                "bracket_types": self.types,
                "max_depth": self.depth,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "hidden_size": self.hidden,
                "intermediate_size": self.hidden,
                "block": self.block,
                "first_layer": self.first_layer,
                "positions": self.positions,
            },
            DyckTraining(**self.values_of(DyckTraining)),
        )
