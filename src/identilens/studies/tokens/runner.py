"""One part of an analysis: a probe fitted on every cell of one fold, and tested."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.measures.tokens.fitting import fit_probes
from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.probes import Probe, RidgeProbe, TrainedProbe
from identilens.measures.tokens.splits import Split, keep_training_share, packed, token_rows
from identilens.measures.tokens.training import Progress
from identilens.runs.tables import table_of
from identilens.studies.tokens.cells import Cell, ProbeKind, cells
from identilens.studies.tokens.extraction import HiddenStates
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import TokenSettings

CHUNK_TOKENS = (
    16_384  # Looked up at a time, so that memory holds only these rows of a large corpus.
)
GPU_SHARE = 0.4  # Of a GPU's free memory, for hidden states; training needs the rest.

RateKey = tuple[str, str, str, Cell]


@dataclass(frozen=True)
class Part:
    """What is run and kept as a whole: a probe on one fold of a checkpoint, "model" or "compared", the second one."""

    checkpoint: str
    kind: ProbeKind
    split: Split

    def __str__(self) -> str:
        second = ", second checkpoint" if self.checkpoint == "compared" else ""
        return f"{self.kind.probe} {self.kind.distance}, fold {self.split.fold}{second}"

    def rate_key(self, cell: Cell) -> RateKey:
        """Return what a learning rate is held by."""
        return self.checkpoint, self.kind.probe, self.kind.distance, cell


@dataclass
class Runner:
    """Runs the parts of one analysis, on a GPU that has room for the states, and keeps rates of the first fold."""

    states: Callable[[str], HiddenStates]
    settings: TokenSettings
    device: torch.device
    tell: Callable[[str], None]
    rates: dict[RateKey, float] = field(default_factory=dict)

    def run(self, part: Part) -> pl.DataFrame:
        """Return the table rows of one part."""
        states = self.states(part.checkpoint)
        layers, rates = states.layers, []
        if self.device.type == "cuda":
            room = GPU_SHARE * torch.cuda.mem_get_info(self.device)[0]
            layers = layers.to(self.device) if layers.nbytes < room else layers
        planned = cells(self.settings, len(layers) - 1, part.kind.probe)
        for number, (cell, probe) in enumerate(self._fitted(part, planned, states, layers), 1):
            self.tell(f"{part}: tested {number} of {len(planned)} probes")
            if isinstance(probe, TrainedProbe) and probe.outcome_ is not None:
                self.rates.setdefault(part.rate_key(cell), probe.outcome_.learning_rate)
            rates += [
                self._row(part, cell, tested, probe, states, layers) for tested in cell.tested
            ]
        return table_of(TokenIdentifiability.schema["table"], rates)

    def recall(self, table: pl.DataFrame, layers: dict[str, int]) -> None:
        """Take the learning rates of a finished part's rows, so that a resumed run does not search again."""
        for row in table.filter(pl.col("learning_rate").is_not_null(), fold=0).to_dicts():
            place = [row[name] for name in ("layer_trained", "layer_target", "offset", "share")]
            for cell in cells(self.settings, layers[row["checkpoint"]], row["probe"]):
                if [cell.layer, cell.target, cell.offset, cell.share] == place:
                    self.rates[row["checkpoint"], row["probe"], row["distance"], cell] = row[
                        "learning_rate"
                    ]

    def _fitted(
        self, part: Part, planned: list[Cell], states: HiddenStates, layers: Tensor
    ) -> Iterator[tuple[Cell, Probe]]:
        targets = layers if self.settings.experiment == "layer-to-layer" else layers[:1]
        probe = part.kind.build(self.settings)
        for offset, share in dict.fromkeys((cell.offset, cell.share) for cell in planned):
            group = [cell for cell in planned if (cell.offset, cell.share) == (offset, share)]
            pairs = {(cell.layer, cell.target): part.rate_key(cell) for cell in group}
            known = {pair: self.rates[key] for pair, key in pairs.items() if key in self.rates}
            fitted = fit_probes(
                probe,
                layers,
                targets,
                states.lengths,
                [keep_training_share(part.split, share)],
                pairs=list(pairs),
                offset=offset,
                rates={} if self.settings.search == "every fold" else known,
                progress=lambda progress: self.tell(f"{part}: {_in_words(progress)}"),
            )
            yield from zip(group, (one.probe for one in fitted), strict=True)

    def _row(
        self,
        part: Part,
        cell: Cell,
        tested: int,
        probe: Probe,
        states: HiddenStates,
        layers: Tensor,
    ) -> dict[str, object]:
        train = keep_training_share(part.split, cell.share).train
        targets = layers[cell.target]
        # The naive probe has not seen any sentence; what others got of those that they saw is Brunner's Fig. 7.
        same_layer = tested == cell.layer and part.kind.probe != "naive"
        training = (
            _score(probe, layers[tested], targets, states, train, cell.offset)["rate"]
            if same_layer
            else None
        )
        return {
            "experiment": self.settings.experiment,
            "checkpoint": part.checkpoint,
            "probe": part.kind.probe,
            "distance": part.kind.distance,
            "layer_trained": cell.layer,
            "layer_tested": tested,
            "layer_target": cell.target,
            "offset": cell.offset,
            "share": cell.share,
            "fold": part.split.fold,
            "train_rate": training,
            "train_tokens": len(token_rows(states.lengths, train, offset=cell.offset)),
            **_score(probe, layers[tested], targets, states, part.split.test, cell.offset),
            **_course(probe),
        }


def _course(probe: Probe) -> dict[str, Any]:
    names = ("validation_loss", "learning_rate", "penalty", "epochs", "best_epoch", "converged")
    course: dict[str, Any] = dict.fromkeys(names)
    if isinstance(probe, RidgeProbe) and probe.solution_ is not None:
        return course | {
            "validation_loss": probe.solution_.validation_loss,
            "penalty": probe.solution_.penalty,
        }
    if isinstance(probe, TrainedProbe) and (outcome := probe.outcome_) is not None:
        best = outcome.losses.index(outcome.validation_loss)
        return course | {
            "validation_loss": outcome.validation_loss,
            "learning_rate": outcome.learning_rate,
            "epochs": outcome.epochs[best],
            "best_epoch": outcome.best_epochs[best],
            "converged": outcome.converged[best],
        }
    return course


def _score(
    probe: Probe,
    hidden: Tensor,
    targets: Tensor,
    states: HiddenStates,
    sentences: Sequence[int],
    offset: int,
) -> dict[str, float]:
    """Return the look-up over all tokens of the sentences, a chunk of sentences at a time."""
    looked_up = []
    long_enough = [s for s in sentences if states.lengths[s] > abs(offset)]
    for chunk in packed(
        long_enough, lambda group: sum(states.lengths[s] for s in group) <= CHUNK_TOKENS
    ):
        rows = token_rows(states.lengths, chunk).to(hidden.device)
        predicted = probe.transform(hidden[rows])
        target = targets[rows].to(predicted.dtype)
        sizes = [states.lengths[s] for s in chunk]
        ids = states.token_ids
        looked_up.append(
            look_up(
                predicted,
                target,
                sizes,
                distance=probe.distance,
                offset=offset,
                token_ids=ids[rows.cpu()],
            )
        )
    tokens = sum(one.tokens for one in looked_up)
    sentences_tested = sum(one.sentences for one in looked_up)
    names = ("rate", "token_rate", "chance", "token_chance")
    means = {
        name: sum(getattr(one, name) * one.tokens for one in looked_up) / tokens for name in names
    }
    return {**means, "tokens": tokens, "sentences": sentences_tested}


def _in_words(progress: Progress) -> str:
    probes = f"{progress.jobs_done} of {progress.jobs} probes"
    return probes if progress.jobs_done == progress.jobs else f"{probes}, epoch {progress.epoch}"
