"""The options of the reproductions. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from identilens.lab.encoder.settings import SweepSettings, TaskName
from identilens.lab.reversal.settings import TaskSettings
from identilens.runs.settings import (
    LIST,
    NOT_RECORDED,
    AboveZero,
    NonNegative,
    Positive,
    Settings,
    TwoOrMore,
)
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.mixing.settings import MixingSettings
from identilens.studies.tokens.settings import ProbeName, TokenSettings

Task = Literal["mrpc", "cola", "sst"]


class SharedSettings(Settings):
    """Options of runs that a Ray cluster can share."""


@dataclass(frozen=True, kw_only=True)
class CorpusSettings(Settings):
    """The model and the number of texts; the paper's model is bert-base-uncased.

    Attributes:
        model: Hub id or local folder of a model, or a bundled one.
        data: Folder with the data sets, each in a folder of its own: mrpc, cola, mnli, ud_ewt, wiki_en.
        limit: Number of texts, from the first on. Default: as many as in the paper.
    """

    model: Annotated[str, Parameter(alias="-m")] = "bundled"
    data: Annotated[Path, NOT_RECORDED] = Path("data")
    limit: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class FineTuning(Settings):
    """Fine-tuning of a checkpoint: AdamW at a rate that decreases linearly to 0, weight decay 0.01.

    Attributes:
        epochs: Number of passes over the training part.
        batch_size: Number of texts in a step.
        learning_rate: Learning rate at the start.
        longest: Cut longer texts to this many tokens.
        rows: Use only the first so many rows of the training part.
        seed: Seed of the classifier's initial weights, dropout and order.
    """

    epochs: Positive = 2
    batch_size: Positive = 32
    learning_rate: AboveZero = 5e-5
    longest: TwoOrMore = 128
    rows: Positive | None = None
    seed: NonNegative = 0


@dataclass(frozen=True, kw_only=True)
class TuningTasks(CorpusSettings, FineTuning):
    """The tasks, and how the model is fine-tuned on them.

    Attributes:
        tasks: Tasks, separated by commas.
        limit: Number of texts of each task's validation part, from the first on.
    """

    tasks: Annotated[tuple[Task, ...], LIST] = ("sst", "mrpc", "cola")
    limit: Positive | None = 200


@dataclass(frozen=True, kw_only=True)
class AuditFigure(CorpusSettings, AuditSettings):
    """The audit: the paper cuts texts to 128 tokens."""

    max_length: Positive | None = 128


@dataclass(frozen=True, kw_only=True)
class MixingFigure(CorpusSettings, MixingSettings):
    """The norms of derivatives, and the texts."""


@dataclass(frozen=True, kw_only=True)
class TokenFigure(CorpusSettings, TokenSettings):
    """Probes and their training; all numbers are the paper's by default."""

    probes: Annotated[tuple[ProbeName, ...], LIST] = ("naive", "linear", "mlp")


@dataclass(frozen=True, kw_only=True)
class SameLayer(TokenFigure):
    """Probes tested on the layer on which they were trained."""

    experiment: Literal["same-layer"] = "same-layer"


@dataclass(frozen=True, kw_only=True)
class AcrossLayers(TokenFigure):
    """Probes trained on one layer and tested on all."""

    experiment: Literal["across-layers"] = "across-layers"


@dataclass(frozen=True, kw_only=True)
class LayerToLayer(TokenFigure):
    """Probes from a layer to the one before it."""

    experiment: Literal["layer-to-layer"] = "layer-to-layer"


@dataclass(frozen=True, kw_only=True)
class Neighbours(TokenFigure):
    """Probes for tokens at other positions."""

    experiment: Literal["neighbours"] = "neighbours"


@dataclass(frozen=True, kw_only=True)
class DataShare(TokenFigure):
    """Probes trained on a part of the training sentences."""

    experiment: Literal["data-share"] = "data-share"


@dataclass(frozen=True, kw_only=True)
class TunedFigure(CorpusSettings, FineTuning):
    """The model, its fine-tuning, and the splits.

    Attributes:
        folds: Number of random splits of the sentences.
    """

    folds: Positive = 10


@dataclass(frozen=True, kw_only=True)
class HeadFigure(CorpusSettings):
    """The layer; the paper shows a head of layer 4 of BERT-base.

    Its head with the most raw attention on the first token and the separators is shown.

    Attributes:
        layer: Layer, counted from 0.
    """

    layer: NonNegative = 3


@dataclass(frozen=True, kw_only=True)
class WenSettings(SharedSettings):
    """The number of models, and the length of their training.

    Attributes:
        seeds: Number of seeds of each setting.
        epochs: Number of epochs of every setting; the paper's by default.
        at_once: Number of seeds in one batched computation. An interrupted run repeats at most one of these.
        device: Device to train on.
    """

    seeds: TwoOrMore = 30
    epochs: Positive | None = None
    at_once: Positive | None = None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class FewSeeds(WenSettings):
    """Ten seeds of each setting by default."""

    seeds: TwoOrMore = 10


@dataclass(frozen=True, kw_only=True)
class ManySeeds(WenSettings):
    """Forty seeds of each setting by default."""

    seeds: TwoOrMore = 40


@dataclass(frozen=True, kw_only=True)
class PrefixSettings(WenSettings):
    """The models, and the number of prefixes.

    Attributes:
        prefixes: Number of random prefixes of each length.
    """

    prefixes: Positive = 10


@dataclass(frozen=True, kw_only=True)
class Corollary2Settings(Settings):
    """The model, the loss and the minimisation.

    Attributes:
        lengths: N, the numbers of brackets in the sequences of the loss.
        strengths: Values of λ of the L2 regularisation; each descent starts at the end of the next larger one's.
        hidden: Size of hidden states and of each layer of g.
        seeds: Number of seeds of initial weights for each length.
        iterations: Number of steps of L-BFGS for each λ.
    """

    lengths: Annotated[tuple[TwoOrMore, ...], LIST] = (8, 12, 16)
    strengths: Annotated[tuple[AboveZero, ...], LIST] = (1e-3, 1e-4, 1e-5, 1e-6)
    hidden: Positive = 16
    seeds: Positive = 4
    iterations: Positive = 600


@dataclass(frozen=True, kw_only=True)
class Table1Settings(SweepSettings, SharedSettings):
    """The cells of Table 1 to reproduce.

    Attributes:
        tasks: Tasks, separated by commas.
    """

    tasks: Annotated[tuple[TaskName, ...], LIST] = ("trec",)


@dataclass(frozen=True, kw_only=True)
class ReviewSettings(Settings):
    """The encoder of the figure, and the reviews.

    Attributes:
        model: Folder of an encoder that was trained on IMDB with `identilens lab encoder train --task imdb`.
        data: Folder with the files of IMDB, or the folder above it.
        seed: Seed of the choice of reviews.
    """

    model: Annotated[Path, NOT_RECORDED, Parameter(alias="-m")]
    data: Annotated[Path, NOT_RECORDED] = Path("data")
    seed: NonNegative = 0


@dataclass(frozen=True, kw_only=True)
class RankSettings(ReviewSettings):
    """The encoder, and the number of reviews.

    Attributes:
        reviews: Number of reviews for each length.
    """

    reviews: Positive = 100


@dataclass(frozen=True, kw_only=True)
class Figure5Settings(ReviewSettings):
    """The encoder, and the numbers of reviews and alternatives.

    Attributes:
        reviews: Number of reviews of 66 to 128 tokens.
        count: Number of alternatives of each review.
    """

    reviews: Positive = 63
    count: Positive = 1000


OPTIONS = {
    "bhardwaj2021-table1": Table1Settings,
    "bhardwaj2021-figure2": RankSettings,
    "bhardwaj2021-figure5": Figure5Settings,
    "bhardwaj2021-figure6": RankSettings,
    "brunner2020-figure1": AuditFigure,
    "brunner2020-figure2": AcrossLayers,
    "brunner2020-figure3": MixingFigure,
    "brunner2020-figure6": HeadFigure,
    "brunner2020-figure11": LayerToLayer,
    "brunner2020-figure12": TunedFigure,
    "brunner2020-figure13": TunedFigure,
    "brunner2020-figure14": Neighbours,
    "brunner2020-figure26": MixingFigure,
    "brunner2020-figure38": SameLayer,
    "brunner2020-figure39": SameLayer,
    "brunner2020-figure40": MixingFigure,
    "brunner2020-figure42": MixingFigure,
    "brunner2020-b2": DataShare,
    "sun2021": TuningTasks,
    "structure2025-figure1": TaskSettings,
    "structure2025-figure2": TaskSettings,
    "wen2023-table1": FewSeeds,
    "wen2023-figure1": WenSettings,
    "wen2023-figure2": WenSettings,
    "wen2023-figure3": ManySeeds,
    "wen2023-figure4": FewSeeds,
    "wen2023-figure7": WenSettings,
    "wen2023-figure8": PrefixSettings,
    "wen2023-footnote4": FewSeeds,
    "wen2023-footnote13": PrefixSettings,
    "wen2023-c7": FewSeeds,
    "wen2023-corollary2": Corollary2Settings,
    "wen2023-figure10": ManySeeds,
}
"""Options of each reproduction, by its name on the command line."""
