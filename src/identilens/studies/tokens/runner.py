"""One part of an analysis: a probe fitted on every cell of one fold, and tested."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.measures.tokens.fitting import fit_probes
from identilens.measures.tokens.lookup import LookUp, look_up
from identilens.measures.tokens.probes import Probe, RidgeProbe, TrainedProbe
from identilens.measures.tokens.splits import Split, keep_training_share, token_rows
from identilens.measures.tokens.training import Progress
from identilens.runs.tables import table_of
from identilens.studies.tokens.cells import Cell, ProbeKind, cells
from identilens.studies.tokens.extraction import HiddenStates
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import TokenSettings

# Tokens that are looked up at a time, so that memory holds only these rows of a large corpus.
CHUNK_TOKENS = 16_384
# Share of a GPU's free memory that hidden states may take; training needs the rest.
GPU_SHARE = 0.4

RateKey = tuple[str, str, str, Cell]


@dataclass(frozen=True)
class Part:
    """What is run and kept as a whole.

    Attributes:
        checkpoint: "model", or "compared" for the second one.
        kind: The probe with its distance.
        split: The fold.
    """

    checkpoint: str
    kind: ProbeKind
    split: Split

    def __str__(self) -> str:
        second = ", second checkpoint" if self.checkpoint == "compared" else ""
        return f"{self.kind.probe} {self.kind.distance}, fold {self.split.fold}{second}"


@dataclass
class Runner:
    """Runs the parts of one analysis.

    Attributes:
        states: Gives the hidden states of a checkpoint, extracted when first asked for.
        settings: The experiment.
        device: Where probes train: a GPU that has room for the hidden states, else the CPU.
        tell: Told in words what is being done.
        rates: Learning rates found on the first fold.
    """

    states: Callable[[str], HiddenStates]
    settings: TokenSettings
    device: torch.device
    tell: Callable[[str], None]
    rates: dict[RateKey, float] = field(default_factory=dict)

    def run(self, part: Part) -> pl.DataFrame:
        """Return the table rows of one part."""
        states = self.states(part.checkpoint)
        layers = self._on_device(states.layers)
        found = []
        planned = cells(self.settings, len(layers) - 1, part.kind.probe)
        for number, (cell, probe) in enumerate(self._fitted(part, planned, states, layers), 1):
            self.tell(f"{part}: tested {number} of {len(planned)} probes")
            self._keep_rate(part, cell, probe)
            found += [self._row(part, cell, tested, probe, states, layers) for tested in cell.tested]
        return table_of(TokenIdentifiability.schema["table"], found)

    def recall(self, table: pl.DataFrame, layers: dict[str, int]) -> None:
        """Take the learning rates of a finished part, so that a resumed run does not search again.

        Args:
            table: The part's rows.
            layers: Layers of each checkpoint.
        """
        for row in table.filter((pl.col("fold") == 0) & pl.col("learning_rate").is_not_null()).to_dicts():
            wanted = [row[name] for name in ("layer_trained", "layer_target", "offset", "share")]
            for cell in cells(self.settings, layers[row["checkpoint"]], row["probe"]):
                if [cell.layer, cell.target, cell.offset, cell.share] == wanted:
                    self.rates[row["checkpoint"], row["probe"], row["distance"], cell] = row["learning_rate"]

    def _fitted(
        self, part: Part, planned: list[Cell], states: HiddenStates, layers: Tensor
    ) -> Iterator[tuple[Cell, Probe]]:
        """Yield a fitted probe for each cell; cells of one offset and share train as one stack."""
        targets = layers if self.settings.experiment == "layer-to-layer" else layers[:1]
        probe = part.kind.build(self.settings)
        for offset, share in dict.fromkeys((cell.offset, cell.share) for cell in planned):
            group = [cell for cell in planned if (cell.offset, cell.share) == (offset, share)]
            known = {(cell.layer, cell.target): self._known_rate(part, cell) for cell in group}
            fitted = fit_probes(
                probe,
                layers,
                targets,
                states.lengths,
                [keep_training_share(part.split, share)],
                pairs=list(known),
                offset=offset,
                rates={pair: rate for pair, rate in known.items() if rate is not None},
                progress=lambda progress: self.tell(f"{part}: {_in_words(progress)}"),
            )
            yield from zip(group, (one.probe for one in fitted), strict=True)

    def _row(
        self, part: Part, cell: Cell, tested: int, probe: Probe, states: HiddenStates, layers: Tensor
    ) -> dict[str, object]:
        train = keep_training_share(part.split, cell.share).train
        targets = layers[cell.target]
        test = _score(probe, layers[tested], targets, states, part.split.test, cell.offset)
        # The naive probe has not seen any sentence; what others got of those that they saw is Brunner's Fig. 7.
        own = tested == cell.layer and part.kind.probe != "naive"
        training = _score(probe, layers[tested], targets, states, train, cell.offset) if own else None
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
            "rate": test.rate,
            "token_rate": test.token_rate,
            "train_rate": training.rate if training else None,
            "chance": test.chance,
            "token_chance": test.token_chance,
            "tokens": test.tokens,
            "sentences": test.sentences,
            "train_tokens": len(token_rows(states.lengths, train, offset=cell.offset)),
            **_course(probe),
        }

    def _known_rate(self, part: Part, cell: Cell) -> float | None:
        if self.settings.search == "every fold":
            return None
        return self.rates.get((part.checkpoint, part.kind.probe, part.kind.distance, cell))

    def _keep_rate(self, part: Part, cell: Cell, probe: Probe) -> None:
        if isinstance(probe, TrainedProbe) and probe.outcome_ is not None:
            key = (part.checkpoint, part.kind.probe, part.kind.distance, cell)
            self.rates.setdefault(key, probe.outcome_.learning_rate)

    def _on_device(self, layers: Tensor) -> Tensor:
        """Return the hidden states on the GPU, if one is wanted and has room for them."""
        if self.device.type != "cuda":
            return layers
        free = torch.cuda.mem_get_info(self.device)[0]
        return layers.to(self.device) if layers.numel() * layers.itemsize < GPU_SHARE * free else layers


def _course(probe: Probe) -> dict[str, Any]:
    """Return the columns on how a probe was found."""
    names = ["validation_loss", "learning_rate", "penalty", "epochs", "best_epoch", "converged"]
    course: dict[str, Any] = dict.fromkeys(names)
    if isinstance(probe, RidgeProbe) and probe.solution_ is not None:
        return course | {"validation_loss": probe.solution_.validation_loss, "penalty": probe.solution_.penalty}
    if isinstance(probe, TrainedProbe) and probe.outcome_ is not None:
        outcome = probe.outcome_
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
    probe: Probe, hidden: Tensor, targets: Tensor, states: HiddenStates, sentences: Sequence[int], offset: int
) -> LookUp:
    """Return the look-up over all tokens of the sentences, a chunk of sentences at a time."""
    found = []
    for chunk in _chunks(states.lengths, [s for s in sentences if states.lengths[s] > abs(offset)]):
        rows = token_rows(states.lengths, chunk).to(hidden.device)
        predicted = probe.transform(hidden[rows])
        found.append(
            look_up(
                predicted,
                targets[rows].to(predicted.dtype),
                [states.lengths[s] for s in chunk],
                distance=probe.distance,
                offset=offset,
                token_ids=states.token_ids[rows.cpu()],
            )
        )
    tokens = sum(one.tokens for one in found)

    def mean(name: str) -> float:
        return sum(getattr(one, name) * one.tokens for one in found) / tokens

    return LookUp(
        mean("rate"),
        mean("token_rate"),
        mean("chance"),
        mean("token_chance"),
        tokens,
        sum(one.sentences for one in found),
        torch.cat([one.credit for one in found]),
        None,
    )


def _chunks(lengths: Sequence[int], sentences: Sequence[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    size = 0
    for sentence in sentences:
        if chunk and size + lengths[sentence] > CHUNK_TOKENS:
            yield chunk
            chunk, size = [], 0
        chunk.append(sentence)
        size += lengths[sentence]
    yield chunk


def _in_words(progress: Progress) -> str:
    probes = f"{progress.jobs_done} of {progress.jobs} probes"
    return f"{probes}, epoch {progress.epoch}" if progress.running else probes
