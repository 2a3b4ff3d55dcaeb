"""How Dyck transformers are trained: the options, checked before anything runs."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from identilens.dyck.configuration import DyckConfig
from identilens.dyck.language import Dyck, with_start
from identilens.errors import InputError

Data = Literal["complete", "prefixes"]
Loss = Literal["closing", "all"]


@dataclass(frozen=True)
class DyckTraining:
    """One way to train (Wen et al. 2023, section 4, D.1).

    Attributes:
        length: N, brackets in each training sequence.
        data: ``complete`` balanced words (section 4.1), or ``prefixes`` by Definition 1 (D.2).
        tokens: Brackets in the training set.
        epochs: Times it is gone through.
        batch_size: Sequences in a step.
        learning_rate: Of AdamW at the start; it falls along a cosine, epoch by epoch.
        weight_decay: Of AdamW.
        loss: Cross-entropy at the places whose next token is a ``closing`` bracket, or at ``all`` places.
        contrast: λ, weight of the contrastive term (Eq. 22).
        contrast_depth: Deepest nest of inserted pairs; the language's depth when not given.
        data_seed: Of the training set, the same for every member.
    """

    length: int = 28
    data: Data = "complete"
    tokens: int = 100_000
    epochs: int = 40
    batch_size: int = 100
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    loss: Loss = "closing"
    contrast: float = 0.0
    contrast_depth: int | None = None
    data_seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("length", 2), ("tokens", self.length), ("epochs", 1), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise InputError(f"expected {name} of at least {least}, got {getattr(self, name)}")
        if self.data not in ("complete", "prefixes") or self.loss not in ("closing", "all"):
            raise InputError(
                f"data must be complete or prefixes and loss closing or all; got {self.data!r} and {self.loss!r}"
            )
        if self.data == "complete" and self.length % 2:
            raise InputError(f"expected an even length for complete words, got {self.length}; take {self.length + 1}")
        if self.learning_rate <= 0 or self.weight_decay < 0 or self.contrast < 0:
            raise InputError(
                "expected a positive learning rate, and weight decay and contrast of at least 0; got "
                f"{self.learning_rate}, {self.weight_decay}, {self.contrast}"
            )
        if self.contrast_depth is not None and self.contrast_depth < 1:
            raise InputError(f"expected inserted nests of depth at least 1, got {self.contrast_depth}")

    @property
    def sequences(self) -> int:
        """Sequences in the training set."""
        return self.tokens // self.length

    def sample(self, language: Dyck, count: int, seed: int) -> Int[Tensor, "count n"]:
        """Return sequences of the training law behind a start token.

        Raises:
            InputError: For a length that the language has no word of.
        """
        generator = torch.Generator().manual_seed(seed)
        if self.data == "complete":
            return with_start(language.sample_complete(count, self.length, generator))
        return with_start(language.sample_prefixes(count, self.length, generator))


@dataclass(frozen=True)
class DyckSetting:
    """One kind of model, trained in one way.

    Attributes:
        name: What it is called in tables and figures.
        config: Options of `DyckConfig`.
        training: Data, schedule and loss.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    training: DyckTraining = field(default_factory=DyckTraining)

    def make(self) -> DyckConfig:
        """Return the configuration."""
        return DyckConfig(**self.config)
