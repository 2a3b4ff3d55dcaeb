"""Whether the input token can be recovered from its hidden state (Brunner et al. 2020, section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, product
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from torch import Tensor
from torch.cuda import mem_get_info

from identilens.errors import InputError, SettingError
from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.probes import Probe
from identilens.measures.tokens.splits import (
    Split,
    keep_training_share,
    split_sentences,
    token_rows,
)
from identilens.models.lens import Lens
from identilens.runs.folder import RunFolder
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, Tables
from identilens.studies.heads import TextStudy, shaped
from identilens.studies.tokens.extraction import HiddenStates, extract, read_states, token_count
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import Distance, ProbeName, TokenSettings

CHUNK_TOKENS = (
    16_384  # Looked up at a time, so that memory holds only these rows of a large corpus.
)
GPU_SHARE = 0.4  # Of a GPU's free memory, for hidden states; training needs the rest.
_COURSE = ("validation_loss", "learning_rate", "epochs", "best_epoch", "converged")

_fitted = itemgetter("probe", "distance", "layer_trained", "layer_target", "offset", "share")
"""Gives what a learning rate of the first fold is used for in later ones: the probe and its data."""


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


@dataclass(frozen=True)
class Part:
    """What is run and kept as a whole: a probe on one fold."""

    probe: ProbeName
    distance: Distance
    split: Split

    def __str__(self) -> str:
        return f"{self.probe} {self.distance}, fold {self.split.fold}"


class TokenStudy(TextStudy[TokenSettings, TokenIdentifiability]):
    """Measure for every layer how many input tokens can be recovered from their hidden states.

    Brunner et al. 2020, section 4, B, D.1: a probe g is trained to predict the input x_i from the hidden state e_i^l.
    A token counts as recovered when x_i is nearer to g(e_i^l) than any other input of the same sentence. x is the
    output of the embedding block (``hidden_states[0]``: token, position and segment embeddings after their norm).
    A sentence is never split between training, validation and test.

    Args:
        lens: The model. If it is on a GPU with enough memory for the hidden states, probes are trained there too.
        texts: Texts, pairs, token ids or a batch. Each text is one sentence for splits and look-up.

    Raises:
        InputError: For texts or settings that cannot be used.
        NumericalError: If hidden states are NaN or infinite, naming the text, or no learning rate gives a finite loss.
        OutputFolderError: If a folder contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> texts = [sentence for text in idl.examples() for sentence in text.split(". ")]
        >>> tokens = idl.token_identifiability(lens, texts, layers=(1, 6), probes="naive", folds=2)
        >>> tokens
        TokenIdentifiability: At layer 6, the last with a probe of its own, the naive probe with cosine ...
    """

    name = "tokens"
    unit = "folds"
    alone = "later folds use the learning rates of the first"
    settings_type = TokenSettings
    result_type = TokenIdentifiability

    def __init__(self, lens: Lens, texts: Any, settings: TokenSettings) -> None:
        super().__init__(lens, texts, settings)
        lengths = [token_count(item, text) for text, item in enumerate(self.items)]
        check_corpus(settings, lengths)
        layers = len(read_states(lens, self.items[:1])[0]) - 1
        cells(settings, layers, settings.probes[0])
        splits = split_sentences(len(self.items), folds=settings.folds, seed=settings.seed)
        self.parts = [
            Part(probe, distance, split)
            for probe, distance in product(settings.probes, settings.distances)
            for split in (splits[: settings.mlp_folds] if probe == "mlp" else splits)
        ]
        self._rates: dict[tuple[Any, ...], float] = {}
        self._temporary: TemporaryDirectory[str] | None = None

    def begin(self, folder: RunFolder | None) -> None:
        """Read the learning rates that finished parts have chosen."""
        super().begin(folder)
        for part in range(len(self.parts)):
            if folder is not None and folder.has(part):
                self._remember(folder.read([part]).tables["table"])

    def run(self, part: int) -> Output:
        """Return the rows of one fold of one probe and distance, computed on a GPU that has room for the states."""
        chosen, settings, rows = self.parts[part], self.settings, []
        states, device = self._states, self.lens.device
        layers = states.layers
        if device.type == "cuda" and layers.nbytes < GPU_SHARE * mem_get_info(device)[0]:
            layers = layers.to(device)
        planned = cells(settings, len(layers) - 1, chosen.probe)
        for number, cell in enumerate(planned):
            done = f"{chosen}: {number} of {len(planned)} probes"
            self.tell(done)
            split = keep_training_share(chosen.split, cell.share)
            where = {
                "experiment": settings.experiment,
                "probe": chosen.probe,
                "distance": chosen.distance,
                "layer_trained": cell.layer,
                "layer_target": cell.target,
                "offset": cell.offset,
                "share": cell.share,
                "fold": split.fold,
                "train_tokens": len(token_rows(states.lengths, split.train, offset=cell.offset)),
            }
            rate = self._rates.get(_fitted(where))
            probe = build_probe(chosen.probe, chosen.distance, settings, rate)
            if chosen.probe != "naive":
                pairs = []
                for sentences in (split.train, split.validation):
                    tokens = token_rows(states.lengths, sentences, offset=cell.offset)
                    tokens = tokens.to(layers.device)
                    pairs += [layers[cell.layer, tokens], layers[cell.target, tokens + cell.offset]]
                probe.fit(
                    *pairs, progress=lambda epoch, done=done: self.tell(f"{done}, epoch {epoch}")
                )
            where |= {name: getattr(probe.outcome_, name, None) for name in _COURSE}
            for tested in cell.tested:
                row = {**where, "layer_tested": tested}
                # The naive probe has not seen any sentence; what others got of those that they saw is Brunner's Fig. 7.
                if tested == cell.layer and chosen.probe != "naive":
                    score = _score(probe, cell, tested, layers, states, split.train)
                    row["train_rate"] = score["rate"]
                rows.append(row | _score(probe, cell, tested, layers, states, split.test))
        table = shaped(TokenIdentifiability.schema["table"], [rows])
        self._remember(table)
        return Output({"table": table})

    def _remember(self, table: pl.DataFrame) -> None:
        """Keep the learning rates of a part for later folds; those of earlier ones stay."""
        for row in table.drop_nulls("learning_rate").iter_rows(named=True):
            self._rates.setdefault(_fitted(row), row["learning_rate"])

    def finish(self, tables: Tables) -> Output:
        """Delete hidden states that were stored for this run only."""
        if self._temporary is not None:
            self._temporary.cleanup()
        return Output(tables)

    @cached_property
    def _states(self) -> HiddenStates:
        """The hidden states, in the folder of settings or run, or one for now."""
        cache = self.settings.states or (self.folder and self.folder / "states")
        if cache is None:
            self._temporary = TemporaryDirectory(ignore_cleanup_errors=True)
            cache = Path(self._temporary.name)
        # Hidden states stay after the run: later runs on the same texts use them.
        return extract(self.lens, self.items, cache, self.tell)


def _score(
    probe: Probe,
    cell: Cell,
    tested: int,
    layers: Tensor,
    states: HiddenStates,
    sentences: Sequence[int],
) -> Row:
    """Return the look-up over all tokens of the sentences, a chunk of sentences at a time."""
    results, lengths = [], states.lengths
    long_enough = [sentence for sentence in sentences if lengths[sentence] > abs(cell.offset)]
    totals = accumulate(lengths[sentence] for sentence in long_enough)
    chunks = groupby(zip(totals, long_enough, strict=True), lambda pair: pair[0] // CHUNK_TOKENS)
    for chunk in ([sentence for _, sentence in pairs] for _, pairs in chunks):
        rows = token_rows(lengths, chunk).to(layers.device)
        predicted = probe.transform(layers[tested, rows])
        results.append(
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
    means = pl.DataFrame(results).select(
        (rates * tokens).sum() / tokens.sum(), pl.col("tokens", "sentences").sum()
    )
    return means.row(0, named=True)


def build_probe(
    probe: ProbeName, distance: Distance, settings: TokenSettings, rate: float | None = None
) -> Probe:
    """Return a probe with the distance of its loss and look-up; with a learning rate, none is searched."""
    return Probe(
        distance,
        rate or settings.learning_rates,
        settings.batch_size,
        settings.patience,
        settings.max_epochs,
        settings.seed,
        settings.hidden_units if probe == "mlp" else None,
    )


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


token_identifiability = study_function(TokenStudy, "token_identifiability")
