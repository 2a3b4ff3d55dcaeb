"""What can be asked of token identifiability: experiments, probes, distances, and the cells they are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from identilens.errors import InputError
from identilens.measures.tokens.fitting import Search
from identilens.measures.tokens.lookup import Distance
from identilens.measures.tokens.probes import LinearProbe, MlpProbe, NaiveProbe, Probe, RidgeProbe
from identilens.measures.tokens.splits import (
    PAPER_FOLDS,
    checked_lengths,
    keep_training_share,
    split_sentences,
    token_rows,
)

Experiment = Literal["same-layer", "across-layers", "layer-to-layer", "neighbours", "data-share"]
ProbeName = Literal["naive", "linear", "mlp", "ridge"]


@dataclass(frozen=True)
class TokenSettings:
    """What changes the numbers of a token identifiability analysis, beside the seed.

    Attributes:
        experiment: ``same-layer`` (Brunner et al. 2020, Fig. 2a, 7, 38, 39), ``across-layers`` (2b, 8-10),
            ``layer-to-layer`` (11-13), ``neighbours`` (14-17) or ``data-share`` (B.2).
        probes: Any of ``naive``, ``linear``, ``mlp``, ``ridge``.
        distances: ``cosine``, ``l2`` or both, of loss and look-up; ridge is always l2.
        folds: Random 70/15/15 splits of the sentences.
        mlp_folds: Fit the MLP, which takes longest, on the first so many of them only; on all when None.
        layers: Layers to train on, from 1; all when None, for ``data-share`` the last but one.
        offsets: Neighbours to recover, for ``neighbours``.
        shares: Shares of the training sentences, for ``data-share``.
        learning_rates: Of the trained probes: one, or several to search; the paper's seven when None.
        search: Where the rate is searched: on ``every fold``, or on the ``first fold`` for the others too.
        batch_size: Tokens a step of training.
        patience: Epochs without a lower validation loss before training stops.
        max_epochs: Limit on the epochs; the paper names none.
        hidden_units: Width of the MLP's hidden layer.
        max_length: Cut longer texts to this many tokens.
    """

    experiment: Experiment = "same-layer"
    probes: tuple[ProbeName, ...] = ("naive", "linear")
    distances: tuple[Distance, ...] = ("cosine", "l2")
    folds: int = PAPER_FOLDS
    mlp_folds: int | None = None
    layers: tuple[int, ...] | None = None
    offsets: tuple[int, ...] = (-3, -2, -1, 1, 2, 3)
    shares: tuple[float, ...] = (0.5, 0.8, 0.9, 1.0)
    learning_rates: tuple[float, ...] | None = None
    search: Search = "first fold"
    batch_size: int = 256
    patience: int = 20
    max_epochs: int = 1000
    hidden_units: int = 1000
    max_length: int | None = None


@dataclass(frozen=True)
class Cell:
    """One probe to fit on each fold, and where it is tested.

    Attributes:
        layer: Layer it is trained on.
        tested: Layers it is tested on.
        target: Layer whose states it predicts; 0 is the input.
        offset: It predicts the token this many places to the right.
        share: Share of the training sentences.
    """

    layer: int
    tested: tuple[int, ...]
    target: int = 0
    offset: int = 0
    share: float = 1.0


@dataclass(frozen=True)
class ProbeKind:
    """A probe with its distance.

    Attributes:
        probe: Kind of probe.
        distance: Of loss and look-up.
    """

    probe: ProbeName
    distance: Distance

    def build(self, settings: TokenSettings, seed: int) -> Probe:
        """Return the estimator."""
        if self.probe == "naive":
            return NaiveProbe(self.distance)
        if self.probe == "ridge":
            return RidgeProbe()
        course = (settings.learning_rates, settings.batch_size, settings.patience, settings.max_epochs, seed)
        if self.probe == "linear":
            return LinearProbe(self.distance, *course)
        return MlpProbe(self.distance, *course, hidden_units=settings.hidden_units)


def chosen_settings(settings: TokenSettings | None, options: dict[str, Any]) -> TokenSettings:
    """Return settings with single options put over them, sequences as tuples, after checking names and choices.

    Args:
        settings: All options at once; the defaults when None.
        options: Single options.

    Raises:
        InputError: For an unknown option or choice, or a number outside its range.
    """
    known = {field.name: field for field in fields(TokenSettings)}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"unknown options {', '.join(unknown)}; choose from {', '.join(known)}")
    base = settings or TokenSettings()
    values = {name: getattr(base, name) for name in known} | options
    for name in ("probes", "distances", "layers", "offsets", "shares", "learning_rates"):
        if isinstance(values[name], str | int | float):
            values[name] = (values[name],)
        if values[name] is not None:
            values[name] = tuple(dict.fromkeys(values[name]))
    chosen = TokenSettings(**values)
    _check_choices(chosen)
    _check_numbers(chosen)
    return chosen


def probe_kinds(settings: TokenSettings) -> list[ProbeKind]:
    """Return every probe with every distance that it has: ridge regression has no cosine form."""
    pairs = [ProbeKind(probe, distance) for probe in settings.probes for distance in settings.distances]
    return [pair for pair in pairs if pair.probe != "ridge" or pair.distance == "l2"]


def cells(settings: TokenSettings, layers: int, probe: ProbeName) -> list[Cell]:
    """Return what one probe is fitted and tested on.

    The naive probe learns nothing, so that in ``across-layers`` it is only tested where it stands, and in
    ``data-share`` it has one share.

    Args:
        settings: The experiment.
        layers: Layers of the model, embeddings not counted.
        probe: Kind of probe.

    Raises:
        InputError: For a layer the model lacks.
    """
    every = tuple(range(1, layers + 1))
    missing = sorted(set(settings.layers or ()) - set(every))
    if missing or settings.layers == ():
        raise InputError(
            f"the model gives hidden states of the layers 1 to {layers}; got {missing or 'none'}. "
            "Layer 1 is the first layer's output; the embeddings (0) are what is to be recovered."
        )
    trained = settings.layers or every
    if settings.experiment == "across-layers":
        return [Cell(layer, (layer,) if probe == "naive" else every) for layer in trained]
    if settings.experiment == "layer-to-layer":
        return [Cell(layer, (layer,), target=layer - 1) for layer in trained]
    if settings.experiment == "neighbours":
        return [Cell(layer, (layer,), offset=offset) for offset in settings.offsets for layer in trained]
    if settings.experiment == "data-share":
        trained = settings.layers or (max(1, layers - 1),)
        shares = (1.0,) if probe == "naive" else settings.shares
        return [Cell(layer, (layer,), share=share) for share in shares for layer in trained]
    return [Cell(layer, (layer,)) for layer in trained]


def check_corpus(settings: TokenSettings, lengths: Sequence[int], seed: int) -> None:
    """Raise InputError unless every fold finds tokens to train on, to stop by and to test.

    Args:
        settings: The experiment.
        lengths: Tokens in each sentence.
        seed: Of the splits.
    """
    sizes = checked_lengths(lengths)
    offsets = settings.offsets if settings.experiment == "neighbours" else (0,)
    shares = settings.shares if settings.experiment == "data-share" else (1.0,)
    for split in split_sentences(len(sizes), folds=settings.folds, seed=seed):
        parts = {
            "training": keep_training_share(split, min(shares)).train,
            "validation": split.validation,
            "test": split.test,
        }
        for offset in offsets:
            for name, part in parts.items():
                if not len(token_rows(sizes, part, offset=offset)):
                    raise InputError(
                        f"expected {name} sentences of more than {abs(offset)} tokens to recover neighbours at "
                        f"{offset:+d}, got at most {max(sizes[s] for s in part)} in fold {split.fold}; use a smaller "
                        "offset, longer sentences or more text"
                    )


def _check_choices(settings: TokenSettings) -> None:
    for name, kinds in (("probes", ProbeName), ("distances", Distance)):
        wrong = [value for value in getattr(settings, name) if value not in get_args(kinds)]
        if wrong or not getattr(settings, name):
            raise InputError(f"expected {name} from {', '.join(get_args(kinds))}; got {', '.join(wrong) or 'none'}")
    for name, kinds in (("experiment", Experiment), ("search", Search)):
        if getattr(settings, name) not in get_args(kinds):
            raise InputError(f"expected {name} to be {' or '.join(get_args(kinds))}; got {getattr(settings, name)!r}")
    if not probe_kinds(settings):
        raise InputError("the ridge probe minimises the L2 distance and has no cosine form; add the distance l2")


def _check_numbers(settings: TokenSettings) -> None:
    for name in ("folds", "batch_size", "patience", "max_epochs", "hidden_units"):
        if getattr(settings, name) < 1:
            raise InputError(f"expected {name} of at least 1, got {getattr(settings, name)}")
    if settings.mlp_folds is not None and not 1 <= settings.mlp_folds <= settings.folds:
        raise InputError(f"expected mlp_folds from 1 to the {settings.folds} folds, got {settings.mlp_folds}")
    rates = settings.learning_rates
    if rates is not None and (not rates or not all(0 < rate < float("inf") for rate in rates)):
        raise InputError(f"expected positive learning_rates, got {list(rates)}; the paper's are from 3e-6 to 3e-3")
    if settings.experiment == "neighbours" and (not settings.offsets or 0 in settings.offsets):
        raise InputError(
            f"expected offsets other than 0, got {list(settings.offsets)}; offset 0 is the experiment same-layer"
        )
    wrong = [share for share in settings.shares if not 0 < share <= 1]
    if wrong or not settings.shares:
        raise InputError(f"expected shares of the training sentences in (0, 1], got {wrong or 'none'}")
