"""Measures taken while the model runs: each attention call of a batch becomes rows of the audit's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl
from torch import Tensor

from identilens.linalg import row_factor
from identilens.measures.attention.token_types import token_types, type_names
from identilens.models.capture import Lengths
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.sequences import names_at, sides
from identilens.results.audit import COLUMNS
from identilens.studies.audit.rows import ReceivedSums, table_rows
from identilens.studies.audit.text_measure import TextMeasure

Stream = Literal["auto", "always", "never"]

STREAM_LENGTH = 1024
"""With stream="auto", weights of longer texts are never held."""

_BLOCK_BYTES = 2 * 2**20


@dataclass(frozen=True)
class AuditSettings:
    """Options of an audit that change what it computes.

    Attributes:
        layers: Layers to audit, counted from 0 within each kind; all when None.
        batch_size: Texts in one forward pass.
        max_length: Cut longer texts to this many tokens.
        stream: Whether to hold the weights of a layer whole ("never"), in blocks of rows ("always"), or in
            blocks for texts longer than `STREAM_LENGTH` ("auto").
        matrices: Keep raw, effective and null attention of every text.
        examples: Keep them for so many texts, the longest of at most ``example_length`` tokens, for the report.
        example_length: Longest example.
        value_bias: Leave the bias in the values ("in", what the weights mix) or take it out.
    """

    layers: tuple[int, ...] | None = None
    batch_size: int = 8
    max_length: int | None = None
    stream: Stream = "auto"
    matrices: bool = False
    examples: int = 0
    example_length: int = 128
    value_bias: Literal["in", "out"] = "in"


class Runner:
    """Runs parts of a corpus and measures every attention call on the way.

    Attributes:
        matrices: Of the texts to keep, as far as they were run.
        tokens: Of the same texts, by sequence.
    """

    def __init__(
        self, lens: Lens, items: list[Item], sites: tuple[Site, ...], settings: AuditSettings, keep: set[int]
    ) -> None:
        self.lens = lens
        self.items = items
        self.sites = sites
        self.settings = settings
        self.keep = keep
        special = getattr(lens.tokenizer, "all_special_tokens", ["[CLS]"])
        used = {token for item in items for tokens in item.tokens.values() for token in tokens} or {"[CLS]"}
        self.type_names = type_names([token for token in special if token in used])
        self.matrices: dict[str, Tensor] = {}
        self.tokens: dict[int, dict[str, list[str]]] = {}
        self._factors: dict[int, Tensor] = {}

    def run(self, part: range) -> dict[str, pl.DataFrame]:
        """Return the tables of one part of the corpus."""
        rows: list[tuple] = []
        received = ReceivedSums(self.type_names)
        # Texts of like length share a batch, so that little is padded.
        order = sorted(part, key=lambda text: self.items[text].length)
        for start in range(0, len(order), self.settings.batch_size):
            batch = order[start : start + self.settings.batch_size]
            handler = _BatchHandler(self, batch, rows, received)
            self.lens.run([self.items[text] for text in batch], handler)
        table = pl.DataFrame(rows, schema=COLUMNS, orient="row").sort("text", maintain_order=True)
        return {"table": table, "token_types": received.table()}

    def factor(self, call: AttentionCall) -> Tensor:
        """Return the small factor of each head's output projection, computed once a layer."""
        if call.index not in self._factors:
            self._factors[call.index] = row_factor(self.sites[call.index].output_projection)
        return self._factors[call.index]

    def block(self, call: AttentionCall) -> int:
        """Return how many rows of a call's weights are held at a time."""
        _, heads, n, _ = call.query.shape
        mode = self.settings.stream
        if mode == "never" or (mode == "auto" and n <= STREAM_LENGTH):
            return n
        return max(8, _BLOCK_BYTES // (8 * heads * call.key.shape[-2]))


class _BatchHandler:
    """Measures the attention calls of one batch."""

    def __init__(self, runner: Runner, batch: Sequence[int], rows: list[tuple], received: ReceivedSums) -> None:
        self.runner = runner
        self.batch = batch
        self.rows = rows
        self.received = received
        self.lengths = Lengths([runner.items[text] for text in batch])
        self._types: dict[tuple[int, str, int], Tensor] = {}

    def __call__(self, call: AttentionCall) -> Tensor:
        runner, site = self.runner, self.runner.sites[call.index]
        if runner.settings.layers is not None and site.layer not in runner.settings.layers:
            return call.run_sdpa() if runner.lens.runs_fused else call.attend()[0]
        output = call.query.new_zeros(*call.query.shape[:1], call.query.shape[2], site.heads, call.value.shape[-1])
        for index, text in enumerate(self.batch):
            own = call.only(index, *self.lengths.of(index, site.kind, call))
            measure = self._measure(text, site, own)
            output[index, : own.query.shape[2]] = measure.run(runner.block(own))
            summary = measure.summary()
            self.rows += table_rows(text, site, measure.counts, summary)
            self.received.add(site, measure.query_types.sum(0), summary)
            runner.matrices |= measure.matrices()
        return output

    def _measure(self, text: int, site: Site, call: AttentionCall) -> TextMeasure:
        runner = self.runner
        read = sides(site.kind, runner.items[text].tokens)
        return TextMeasure(
            text,
            site,
            call,
            factor=runner.factor(call),
            types=(
                self._token_types(text, read.query, call.query.shape[2]),
                self._token_types(text, read.key, call.key.shape[2]),
            ),
            value_bias=site.value_bias if runner.settings.value_bias == "out" else None,
            keep=text in runner.keep,
        )

    def _token_types(self, text: int, sequence: str, positions: int) -> Tensor:
        key = (text, sequence, positions)
        if key not in self._types:
            tokens = names_at(self.runner.items[text].tokens, sequence, positions, self.runner.lens.model.config)
            self._types[key] = token_types(tokens, self.runner.type_names)
            if text in self.runner.keep:
                self.runner.tokens.setdefault(text, {})[sequence] = list(tokens)
        return self._types[key]
