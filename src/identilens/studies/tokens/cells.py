"""The cells that an experiment is made of: a probe to fit on each fold, and where it is tested."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from identilens.errors import InputError, SettingError
from identilens.measures.tokens.lookup import Distance
from identilens.measures.tokens.probes import LinearProbe, MlpProbe, NaiveProbe, Probe
from identilens.measures.tokens.splits import (
    keep_training_share,
    split_sentences,
    token_rows,
)
from identilens.studies.tokens.settings import ProbeName, TokenSettings


@dataclass(frozen=True)
class Cell:
    """One probe to fit on each fold of one layer, and the layers where it is tested.

    It predicts the states of the target layer (0: the input) this many places to the right, and is trained on a share
    of the training sentences.
    """

    layer: int
    tested: tuple[int, ...]
    target: int = 0
    offset: int = 0
    share: float = 1.0


def build_probe(
    probe: ProbeName, distance: Distance, settings: TokenSettings, rate: float | None = None
) -> Probe:
    """Return a probe with the distance of its loss and look-up; with a learning rate, none is searched."""
    if probe == "naive":
        return NaiveProbe(distance)
    course = (
        distance,
        rate or settings.learning_rates,
        settings.batch_size,
        settings.patience,
        settings.max_epochs,
        settings.seed,
    )
    if probe == "linear":
        return LinearProbe(*course)
    return MlpProbe(*course, hidden_units=settings.hidden_units)


def cells(settings: TokenSettings, layers: int, probe: ProbeName) -> list[Cell]:
    """Return what one probe is fitted and tested on, or raise InputError for a layer the model lacks."""
    every = tuple(range(1, layers + 1))
    missing = sorted(set(settings.layers or ()) - set(every))
    if missing:
        raise InputError(
            f"the model has hidden states of the layers 1 to {layers}; got {missing}. "
            "Layer 1 is the first layer's output; the embeddings (0) are the inputs to recover."
        )
    trained = settings.layers or every
    if settings.experiment == "across-layers":
        return [Cell(layer, (layer,) if probe == "naive" else every) for layer in trained]
    if settings.experiment == "layer-to-layer":
        return [Cell(layer, (layer,), target=layer - 1) for layer in trained]
    if settings.experiment == "neighbours":
        return [
            Cell(layer, (layer,), offset=offset) for offset in settings.offsets for layer in trained
        ]
    if settings.experiment == "data-share":
        trained = settings.layers or (max(1, layers - 1),)
        shares = (1.0,) if probe == "naive" else settings.shares
        return [Cell(layer, (layer,), share=share) for share in shares for layer in trained]
    return [Cell(layer, (layer,)) for layer in trained]


def check_corpus(settings: TokenSettings, lengths: Sequence[int]) -> None:
    """Raise InputError unless every fold finds tokens to train on, to stop by and to test."""
    if settings.folds > len(lengths):
        raise SettingError(
            "folds", f"of at most {len(lengths)}, the number of sentences", settings.folds
        )
    offsets = settings.offsets if settings.experiment == "neighbours" else (0,)
    shares = settings.shares if settings.experiment == "data-share" else (1.0,)
    for split in split_sentences(len(lengths), folds=settings.folds, seed=settings.seed):
        training = keep_training_share(split, min(shares)).train
        parts = {"training": training, "validation": split.validation, "test": split.test}
        for offset, (name, part) in product(offsets, parts.items()):
            if not len(token_rows(lengths, part, offset=offset)):
                raise InputError(
                    f"expected {name} sentences of more than {abs(offset)} tokens to recover neighbours at "
                    f"{offset:+d}; fold {split.fold} has none. Use a smaller offset, longer sentences or more text."
                )
