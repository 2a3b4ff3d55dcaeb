"""How identifiable encoders are trained: every option with its default; the paper's unless said otherwise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from identilens.runs.settings import NOT_RECORDED, Settings

TaskName = Literal["imdb", "trec", "sst", "snli", "yelp", "dbpedia", "sogou", "ag_news", "yahoo", "amazon"]
HeadsName = Literal["concat", "con", "add"]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """What training runs of any task, heads and key size share.

    Attributes:
        data: Folder with the task's files, or one above it; the hub by default.
        hub: Another hub id or folder for datasets than the task's own.
        d_v: Size of values; d_model / heads for concat, d_model for add by default.
        layers: Encoder layers.
        d_model: Embedding size.
        attention_heads: Number of heads.
        feed_forward: Width of the feed-forward block.
        dropout: Of embeddings, attention weights and sublayers.
        max_length: Tokens a text is cut to, [CLS] included.
        max_words: Size of the vocabulary at most.
        epochs: Passes over the training part; the best by validation accuracy is kept.
        batch_size: Texts in a step, over all processes together.
        learning_rate: Of Adam, constant.
        precision: Of the matrix products.
        limit: Train on a random choice of so many rows.
    """

    data: Annotated[Path | None, NOT_RECORDED] = None
    hub: Annotated[str | None, NOT_RECORDED] = None
    d_v: Annotated[int | None, Ge(1)] = None
    layers: Annotated[int, Ge(1)] = 1
    d_model: Annotated[int, Ge(1)] = 512
    attention_heads: Annotated[int, Ge(1)] = 8
    feed_forward: Annotated[int, Ge(1)] = 2048
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    max_length: Annotated[int, Ge(2)] = 512
    max_words: Annotated[int, Ge(1)] = 100_000
    epochs: Annotated[int, Ge(1)] = 20
    batch_size: Annotated[int, Ge(1)] = 256
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    limit: Annotated[int | None, Ge(1)] = None


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(TrainingSettings):
    """One training run.

    Attributes:
        task: What to learn.
        heads: Put head outputs side by side (concat, or con for short) or add them.
        d_k: Size of queries and keys.
        seed: Of the split, the first weights, dropout and the order of batches.
    """

    task: TaskName
    heads: HeadsName = "concat"
    d_k: Annotated[int, Ge(1)] = 64
    seed: Annotated[int, Ge(0)] = 0

    def check(self) -> None:
        """Call heads by their full name."""
        object.__setattr__(self, "heads", full_name(self.heads))


def full_name(heads: str) -> str:
    """Return the configuration's word for the paper's: con, add."""
    return {"con": "concat"}.get(heads, heads)
