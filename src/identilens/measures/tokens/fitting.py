"""Fitting a probe on every layer and fold of a corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from identilens.errors import InputError
from identilens.measures.tokens.probes import Layers, Probe, Report, Targets, TrainedProbe
from identilens.measures.tokens.splits import Lengths, Split, checked_lengths, token_rows
from identilens.measures.tokens.training import Job

Search = Literal["every fold", "first fold"]


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """A probe fitted on one layer and fold to predict one set of vectors."""

    layer: int
    target: int
    split: Split
    probe: Probe


def fit_probes(
    probe: Probe,
    hidden: Layers,
    targets: Targets,
    lengths: Lengths,
    splits: Sequence[Split],
    *,
    pairs: Sequence[tuple[int, int]] | None = None,
    offset: int = 0,
    search: Search = "every fold",
    rates: dict[tuple[int, int], float] | None = None,
    progress: Report | None = None,
) -> list[FittedProbe]:
    """Return the probe fitted on every fold of every (layer, target) pair, fold by fold.

    Each result equals ``probe.fit`` on the same tokens.

    Targets are the inputs, or ``hidden`` itself to predict one layer from another. The default pairs are every layer
    with target 0. The offset is that of the neighbour to predict (Brunner et al. 2020, B.5). A trained probe searches
    its learning rate in every fold, or only in the first fold, whose rate the others use. For pairs with a rate in
    ``rates`` there is no search.

    Raises:
        InputError: Data that do not fit together or are not finite, or a part without tokens.
    """
    checked_lengths(lengths, hidden.shape[1])
    if not splits:
        raise InputError("expected at least one fold, got none; make them with split_sentences")
    pairs = [(layer, 0) for layer in range(len(hidden))] if pairs is None else list(pairs)
    known = dict(rates or {})
    rows = [
        [token_rows(lengths, part, offset=offset) for part in (s.train, s.validation)]
        for s in splits
    ]
    fitted: list[FittedProbe] = []
    trained = isinstance(probe, TrainedProbe)
    searched = trained and search == "first fold" and any(pair not in known for pair in pairs)
    for folds in [slice(0, 1), slice(1, None)] if searched else [slice(None)]:
        cells = [(pair, place) for place in range(len(splits))[folds] for pair in pairs]
        jobs = [_job(probe, pair, rows[place], offset, known.get(pair)) for pair, place in cells]
        for (pair, place), copy in zip(
            cells, probe.fit_all(jobs, hidden, targets, progress), strict=True
        ):
            fitted.append(FittedProbe(*pair, splits[place], copy))
            if searched and isinstance(copy, TrainedProbe) and copy.outcome_:
                known[pair] = copy.outcome_.learning_rate
    return fitted


def _job(
    probe: Probe, pair: tuple[int, int], rows: list[Tensor], offset: int, rate: float | None
) -> Job:
    train, validation = rows
    if not isinstance(probe, TrainedProbe):
        return Job(*pair, train, validation, offset=offset)
    return Job(
        *pair,
        train,
        validation,
        rates=probe.rates if rate is None else (rate,),
        offset=offset,
        seed=probe.seed,
    )
