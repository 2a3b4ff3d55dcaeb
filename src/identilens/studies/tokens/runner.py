"""One part of an analysis: a probe fitted on every cell of one fold, and tested."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.probes import NaiveProbe, Probe
from identilens.measures.tokens.splits import Split, keep_training_share, packed, token_rows
from identilens.runs.tables import Row, table_of
from identilens.studies.tokens.cells import Cell, build_probe, cells
from identilens.studies.tokens.extraction import HiddenStates
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import Distance, ProbeName, TokenSettings

CHUNK_TOKENS = (
    16_384  # Looked up at a time, so that memory holds only these rows of a large corpus.
)
GPU_SHARE = 0.4  # Of a GPU's free memory, for hidden states; training needs the rest.
_COURSE = ("validation_loss", "learning_rate", "epochs", "best_epoch", "converged")

Rates = dict[tuple[Any, ...], float]
"""Learning rates by what `rate_key` returns."""


@dataclass(frozen=True)
class Part:
    """What is run and kept as a whole: a probe on one fold of a checkpoint, "model" or "compared", the second one."""

    checkpoint: str
    probe: ProbeName
    distance: Distance
    split: Split

    def __str__(self) -> str:
        return f"{self.probe} {self.distance}, fold {self.split.fold}, {self.checkpoint}"


def rate_key(row: Row) -> tuple[Any, ...]:
    """Return what a learning rate of the first fold is used for in later ones: the probe and its data."""
    names = "checkpoint", "probe", "distance", "layer_trained", "layer_target", "offset", "share"
    return tuple(row[name] for name in names)


def remember(rates: Rates, table: pl.DataFrame) -> None:
    """Keep the learning rates of a part for later folds; those of earlier ones stay."""
    for row in table.drop_nulls("learning_rate").iter_rows(named=True):
        rates.setdefault(rate_key(row), row["learning_rate"])


def run_part(
    part: Part,
    states: HiddenStates,
    settings: TokenSettings,
    rates: Rates,
    device: torch.device,
    tell: Callable[[str], None],
) -> pl.DataFrame:
    """Return the table rows of one part, computed on a GPU that has room for the states."""
    layers, rows = states.layers, []
    if device.type == "cuda":
        room = GPU_SHARE * torch.cuda.mem_get_info(device)[0]
        layers = layers.to(device) if layers.nbytes < room else layers
    planned = cells(settings, len(layers) - 1, part.probe)
    for number, cell in enumerate(planned):
        done = f"{part}: {number} of {len(planned)} probes"
        tell(done)
        split = keep_training_share(part.split, cell.share)
        where = {
            "experiment": settings.experiment,
            "checkpoint": part.checkpoint,
            "probe": part.probe,
            "distance": part.distance,
            "layer_trained": cell.layer,
            "layer_target": cell.target,
            "offset": cell.offset,
            "share": cell.share,
            "fold": split.fold,
            "train_tokens": len(token_rows(states.lengths, split.train, offset=cell.offset)),
        }
        probe = build_probe(part.probe, part.distance, settings, rates.get(rate_key(where)))
        if not isinstance(probe, NaiveProbe):
            pairs = []
            for sentences in (split.train, split.validation):
                tokens = token_rows(states.lengths, sentences, offset=cell.offset).to(layers.device)
                pairs += [layers[cell.layer, tokens], layers[cell.target, tokens + cell.offset]]
            probe.fit(*pairs, progress=lambda epoch, done=done: tell(f"{done}, epoch {epoch}"))
        where |= {name: getattr(probe.outcome_, name, None) for name in _COURSE}
        for tested in cell.tested:
            score = _score(probe, cell, tested, layers, states, split.test)
            training = None
            # The naive probe has not seen any sentence; what others got of those that they saw is Brunner's Fig. 7.
            if tested == cell.layer and part.probe != "naive":
                training = _score(probe, cell, tested, layers, states, split.train)["rate"]
            rows.append({**where, "layer_tested": tested, "train_rate": training, **score})
    return table_of(TokenIdentifiability.schema["table"], rows)


def _score(
    probe: Probe,
    cell: Cell,
    tested: int,
    layers: Tensor,
    states: HiddenStates,
    sentences: Sequence[int],
) -> Row:
    """Return the look-up over all tokens of the sentences, a chunk of sentences at a time."""
    found = []
    lengths = states.lengths
    long_enough = [sentence for sentence in sentences if lengths[sentence] > abs(cell.offset)]
    for chunk in packed(
        long_enough, lambda group: sum(lengths[sentence] for sentence in group) <= CHUNK_TOKENS
    ):
        rows = token_rows(lengths, chunk).to(layers.device)
        predicted = probe.transform(layers[tested, rows])
        found.append(
            look_up(
                predicted,
                layers[cell.target, rows].to(predicted.dtype),
                [lengths[sentence] for sentence in chunk],
                distance=probe.distance,
                offset=cell.offset,
                token_ids=states.token_ids[rows.cpu()],
            )
        )
    tokens = pl.col("tokens")
    rates = pl.col("rate", "token_rate", "chance", "token_chance")
    means = pl.DataFrame(found).select(
        (rates * tokens).sum() / tokens.sum(), pl.col("tokens", "sentences").sum()
    )
    return means.row(0, named=True)
