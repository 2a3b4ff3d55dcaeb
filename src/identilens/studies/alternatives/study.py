"""Texts in, results out: what else the attention could have been, put back into the model."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.errors import InputError
from identilens.measures.attention.simplex import total_variation
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.sequences import Kind
from identilens.results.alternatives import ALTERNATIVE_COLUMNS, CHANGE_COLUMNS, Alternatives
from identilens.results.matrices import StoredMatrices, of_text, write_matrices
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance
from identilens.runs.matrices import MatrixKey
from identilens.studies.alternatives.put_back import PutBack, compare_runs
from identilens.studies.alternatives.search import Found, alternatives_of, by_parameters, logit_rank


@dataclass(frozen=True)
class AlternativeSettings:
    """Options that change what is looked for.

    Attributes:
        layers: Layers, counted from 0 within each kind; all when None.
        heads: Heads, counted from 0; all when None.
        kind: ``encoder``, ``decoder`` or ``cross``; all that the model has when None.
        realisable: Also look for other queries and keys that give the same output, and for the parameters that
            make them.
        distance: Mean total variation distance that these are to reach, in (0, 1).
        starts: Random starts a row in the search for a far alternative.
        max_length: Cut longer texts to this many tokens.
        seed: Of the random numbers.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    kind: Kind | None = None
    realisable: bool = False
    distance: float = 0.1
    starts: int = 8
    max_length: int | None = None
    seed: int = 0


def alternatives(
    lens: Lens,
    texts: Any,
    *,
    layers: Sequence[int] | int | None = None,
    heads: Sequence[int] | int | None = None,
    kind: Kind | None = None,
    realisable: bool = False,
    distance: float = 0.1,
    starts: int = 8,
    max_length: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Alternatives:
    """Return other attention weights with the same output, and what the model makes of them.

    For each head: one drawn evenly from all alternatives (``sampled``), a far one (``far``), the most even one
    (``maximum_entropy``) and, when asked for, one that other queries and keys give (``realisable``) and the weights
    that the model itself computes with the parameters changed accordingly (``parameters``). Each is put back into
    the model, and the change of every hidden state, the logits and the loss is measured. Derivations and limits:
    docs/alternatives.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: See `AlternativeSettings`; this and the next seven.
        heads: Heads.
        kind: Kind of attention.
        realisable: Look for other queries, keys and parameters.
        distance: How far these are to go.
        starts: Random starts of the search for a far alternative.
        max_length: Cut longer texts.
        seed: Of the random numbers.
        out: Folder to fill head by head; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (heads done, heads in all).

    Raises:
        InputError: For texts or options that cannot be used, a head the model lacks, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an answer cannot be certified.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    settings = AlternativeSettings(
        numbers(layers), numbers(heads), kind, realisable, distance, starts, max_length, seed
    )
    if not 0 < distance < 1:
        raise InputError(f"expected a distance in (0, 1); got {distance}. It is a mean total variation distance.")
    if starts < 1:
        raise InputError(f"expected at least one start; got {starts}.")
    items = lens.read(texts, max_length)
    chosen = list(chosen_heads(lens.sites(items[0]), settings.layers, settings.heads, kind))
    units = [(text, site, head) for text in range(len(items)) for site, head in chosen]
    options = {name: value for name, value in asdict(settings).items() if name != "seed"}
    texts_read = [item.identity for item in items]
    record = provenance("alternatives", model=lens.facts, texts=texts_read, settings=options, seed=seed)
    study = _Study(lens, items, settings)

    def write_kept() -> None:
        # A text's file holds all of its heads; what was written before an interruption is read again.
        study.write(Path(out or ""))

    tables = run_parts(
        record,
        [1] * len(units),
        lambda part: study.run(*units[part]),
        {"table": whole, "changes": whole},
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
        before_writing=write_kept,
    )
    if out is not None:
        return Alternatives.load(out)
    return Alternatives(tables["table"], tables["changes"], record, study.matrices, study.tokens)


class _Study:
    """Studies head after head; keeps the matrices and the model's plain run of the present text."""

    def __init__(self, lens: Lens, items: list[Item], settings: AlternativeSettings) -> None:
        self.lens, self.items, self.settings = lens, items, settings
        self.matrices: dict[str, Tensor] = {}
        self.tokens: dict[int, dict[str, list[str]]] = {}
        self._plain: dict[int, Any] = {}

    def run(self, text: int, site: Site, head: int) -> dict[str, pl.DataFrame]:
        """Return the table rows of one head on one text."""
        lens, item, settings = self.lens, self.items[text], self.settings
        if text not in self._plain:
            self._plain = {text: lens.substitute({}, item)}
        plain = self._plain[text]
        seen = read_head(lens, item, site.layer, head, site.kind)
        seed = settings.seed * 1_000_003 + 7919 * text + 101 * site.layer + head
        generator = torch.Generator().manual_seed(seed)
        rows, changes = [], []
        key = MatrixKey(text, site.layer, head, site.kind, "raw")
        self.tokens.setdefault(text, {name: list(names) for name, names in item.tokens.items()})
        self._keep(key, {"raw": seen.attention, "effective": seen.effective})
        address = (text, site.layer, head, site.kind)
        distance = settings.distance if settings.realisable else None
        for found in alternatives_of(seen, settings.starts, distance, generator):
            put = None
            if found.weights is not None:
                run = lens.substitute({(site.layer, head, site.kind): found.weights}, item)
                put = compare_runs(plain, run)
                self._keep(key, found.tensors())
            rows.append(_row(address, seen, found, put))
            changes += _change_rows(address, found.name, put)
            if found.name == "realisable":
                found, run = by_parameters(lens, item, seen, found)
                put = None if run is None else compare_runs(plain, run)
                if found.weights is not None:
                    self._keep(key, {"alternative_parameters": found.weights})
                rows.append(_row(address, seen, found, put))
                changes += _change_rows(address, found.name, put)
        return {
            "table": pl.DataFrame(rows, schema=ALTERNATIVE_COLUMNS, orient="row"),
            "changes": pl.DataFrame(changes, schema=CHANGE_COLUMNS, orient="row"),
        }

    def _keep(self, key: MatrixKey, tensors: dict[str, Tensor]) -> None:
        self.matrices |= {str(key.named(name)): tensor.cpu() for name, tensor in tensors.items()}

    def write(self, folder: Path) -> None:
        """Add the matrices held to those in a folder, and let go of the texts that are done."""
        stored = StoredMatrices(folder / "matrices")
        for text, tokens in self.tokens.items():
            if own := of_text(self.matrices, text):
                write_matrices(folder, text, of_text(stored, text) | own, tokens)
        self.matrices.clear()


def _row(address: tuple, head: Head, found: Found, put: PutBack | None) -> tuple:
    n_query, n_key = head.attention.shape
    mean = largest = lost = None
    if found.weights is not None:
        distance = total_variation(head.attention, found.weights)
        mean, largest, lost = float(distance.mean()), float(distance.max()), head.output_error(found.weights)
    return (
        *address,
        found.name,
        n_query,
        n_key,
        head.d_k,
        head.simplex_nullity,
        mean,
        largest,
        lost,
        logit_rank(head, found.weights),
        found.dimension,
        found.formula,
        *((put.hidden, put.logits, put.loss) if put else (None, None, None)),
        found.note,
    )


def _change_rows(address: tuple, name: str, put: PutBack | None) -> list[tuple]:
    changes = put.changes if put else ()
    return [(*address, name, one.state, one.layer, one.largest, one.relative) for one in changes]


def numbers(given: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """Return the layers or heads that a caller gave, each once; None for all."""
    if given is None or isinstance(given, int):
        return given if given is None else (given,)
    return tuple(dict.fromkeys(given))
