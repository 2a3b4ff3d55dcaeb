"""Options of training Dyck transformers, checked before anything runs."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from jaxtyping import Int
from torch import Tensor

from identilens.errors import InputError, SettingError
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.language import Dyck, with_start
from identilens.runs.settings import LIST, AboveZero, Positive, Settings, TwoOrMore

Data = Literal["complete", "prefixes"]
Loss = Literal["closing", "all"]
Attention = Literal["learned", "uniform"]

LONG = (400, 500)
"""Numbers of brackets in the shortest and the longest prefix of the length generalisation."""


@dataclass(frozen=True, kw_only=True)
class DyckLaw(Settings):
    """The distribution of training sequences (Wen et al. 2023, section 4.1, D.2).

    Attributes:
        length: Number of brackets in a training sequence.
        data: Balanced words (complete), or prefixes by Definition 1 (prefixes).
    """

    length: TwoOrMore = 28
    data: Data = "complete"

    def check(self) -> None:
        """Check that there are balanced words of the length."""
        super().check()
        if self.data == "complete" and self.length % 2:
            raise InputError(
                f"expected an even length for complete words, got {self.length}; use {self.length + 1}"
            )

    def sample(self, language: Dyck, count: int, seed: int) -> Int[Tensor, "count n"]:
        """Return sequences of the training distribution after a start token.

        Raises:
            InputError: If the language has no word of the length.
        """
        draw = language.sample_complete if self.data == "complete" else language.sample_prefixes
        return with_start(draw(count, self.length, torch.Generator().manual_seed(seed)))


@dataclass(frozen=True, kw_only=True)
class DyckTraining(DyckLaw):
    """One way to train (Wen et al. 2023, section 4, D.1).

    Attributes:
        tokens: Number of brackets in the training set.
        epochs: Number of passes over the training set.
        batch_size: Number of sequences in a training step.
        learning_rate: Learning rate of AdamW at the start. It decreases as a cosine, epoch by epoch.
        weight_decay: Weight decay of AdamW. It is decoupled: not an L2 term of the loss.
        loss: Tokens that count in the cross-entropy: all next tokens (all), or only closing brackets (closing).
        attention: Train queries and keys (learned), or keep them at zero, so that attention is uniform (uniform).
        contrast: Weight λ of the contrastive term (Eq. 22); the paper uses 0.3.
    """

    tokens: TwoOrMore = 100_000
    epochs: Positive = 40
    batch_size: Positive = 100
    learning_rate: AboveZero = 3e-3
    weight_decay: Annotated[float, Ge(0)] = 0.0
    loss: Loss = "closing"
    attention: Attention = "learned"
    contrast: Annotated[float, Ge(0)] = 0.0

    def check(self) -> None:
        """Check that the training set has at least one sequence."""
        super().check()
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
    lengths: Annotated[tuple[int, int], LIST] = LONG
    head_sequences: Positive = 100
    draws: Positive = 3

    def check(self) -> None:
        """Check that the shorter length is first."""
        super().check()
        if not 2 <= self.lengths[0] <= self.lengths[1]:
            raise SettingError(
                "lengths", "as two ends such as 400-500, the shorter first", self.lengths
            )


@dataclass(frozen=True)
class DyckSetting:
    """One kind of model, trained in one way.

    Attributes:
        name: Name in tables and figures.
        config: Options of `DyckConfig`.
        training: Data, schedule and loss.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    training: DyckTraining = field(default_factory=DyckTraining)

    def make(self) -> DyckConfig:
        """Return the configuration."""
        return DyckConfig(**self.config)
