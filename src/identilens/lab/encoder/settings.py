"""Options of identifiable encoders. Imports nothing heavy. Defaults are those of the paper unless stated otherwise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from identilens.errors import SettingError
from identilens.runs.settings import (
    LIST,
    NOT_RECORDED,
    AboveZero,
    NonNegative,
    Numbers,
    Positive,
    Settings,
    TwoOrMore,
)

TaskName = Literal[
    "imdb", "trec", "sst", "snli", "yelp", "dbpedia", "sogou", "ag_news", "yahoo", "amazon"
]
HeadsName = Literal["concat", "add"]

D_K = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes of queries and keys, in the order of the columns of Table 1."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """Settings that do not depend on the task, the kind of heads and the key size.

    Attributes:
        data: Folder with the task's files, or the folder above it.
        d_v: Size of values. Default: d_model / heads for concat, d_model for add.
        layers: Number of encoder layers.
        d_model: Embedding size.
        attention_heads: Number of heads.
        feed_forward: Width of the feed-forward block.
        initial_std: Standard deviation of the initial embeddings of tokens and positions.
        dropout: Dropout of embeddings, attention weights and sublayers.
        max_length: Cut longer texts to this many tokens, [CLS] included.
        max_words: Largest size of the vocabulary.
        epochs: Number of passes over the training part. The epoch with the best validation accuracy is used.
        batch_size: Number of texts in a training step.
        learning_rate: Learning rate of Adam, constant.
        precision: Precision of the matrix products.
        limit: Train on this many rows, chosen at random.
    """

    data: Annotated[Path, NOT_RECORDED] = Path("data")
    d_v: Positive | None = None
    layers: Positive = 1
    d_model: Positive = 512
    attention_heads: Positive = 8
    feed_forward: Positive = 2048
    initial_std: AboveZero = 1.0
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    max_length: TwoOrMore = 512
    max_words: Positive = 100_000
    epochs: Positive = 20
    batch_size: Positive = 256
    learning_rate: AboveZero = 1e-3
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    limit: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(TrainingSettings):
    """One training run.

    Attributes:
        task: Task to learn.
        heads: Concatenate the head outputs (concat) or add them (add).
        d_k: Size of queries and keys.
        seed: Seed of the split, the initial weights, dropout and the order of batches.
    """

    task: TaskName
    heads: HeadsName = "concat"
    d_k: Positive = 64
    seed: NonNegative = 0


@dataclass(frozen=True, kw_only=True)
class SweepSettings(TrainingSettings):
    """The grid of runs, and the settings that all runs share.

    Attributes:
        tasks: Tasks, separated by commas.
        heads: Kinds of heads, separated by commas.
        d_k: Sizes of queries and keys, such as 1,2,64.
        seeds: Seeds, such as 0-4, with one run for each; Table 1 has one seed.
    """

    tasks: Annotated[tuple[TaskName, ...], LIST]
    heads: Annotated[tuple[HeadsName, ...], LIST] = ("concat", "add")
    d_k: Annotated[tuple[Positive, ...], LIST] = D_K
    seeds: Numbers = (0,)

    def check(self) -> None:
        """Check that there is something to train."""
        for name in ("tasks", "heads", "d_k", "seeds"):
            if not getattr(self, name):
                raise SettingError(name, "with at least one value", ())
