"""One part of an analysis: a probe fitted on every cell of one fold, and tested."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import polars as pl
import torch
from torch import Tensor

from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.probes import NaiveProbe, Outcome, Probe
from identilens.measures.tokens.splits import Split, keep_training_share, packed, token_rows
from identilens.runs.tables import table_of
from identilens.studies.tokens.cells import Cell, ProbeKind, cells
from identilens.studies.tokens.extraction import HiddenStates
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import TokenSettings

CHUNK_TOKENS = (
    16_384  # Looked up at a time, so that memory holds only these rows of a large corpus.
)
GPU_SHARE = 0.4  # Of a GPU's free memory, for hidden states; training needs the rest.
_COURSE = ("validation_loss", "learning_rate", "penalty", "epochs", "best_epoch", "converged")

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
        for number, cell in enumerate(planned):
            done = f"{part}: {number} of {len(planned)} probes"
            self.tell(done)
            probe = self._fitted(part, cell, states.lengths, layers, done)
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
        self, part: Part, cell: Cell, lengths: Sequence[int], layers: Tensor, done: str
    ) -> Probe:
        key = part.rate_key(cell)
        known = None if self.settings.search == "every fold" else self.rates.get(key)
        probe = part.kind.build(self.settings, known)
        if isinstance(probe, NaiveProbe):
            return probe
        split = keep_training_share(part.split, cell.share)
        pairs = []
        for sentences in (split.train, split.validation):
            rows = token_rows(lengths, sentences, offset=cell.offset).to(layers.device)
            pairs += [layers[cell.layer, rows], layers[cell.target, rows + cell.offset]]
        probe.fit(*pairs, progress=lambda epoch: self.tell(f"{done}, epoch {epoch}"))
        if isinstance(probe.outcome_, Outcome):
            self.rates.setdefault(key, probe.outcome_.learning_rate)
        return probe

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
            **{name: getattr(probe.outcome_, name, None) for name in _COURSE},
        }


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
