"""Measures taken while the model runs: each attention call of a batch becomes rows of the audit's tables."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import OutputFactor
from identilens.linalg.causal_rows import BLOCK
from identilens.linalg.factor import stored_rank
from identilens.measures.attention.token_types import token_types, type_names
from identilens.models.at_once import room
from identilens.models.capture import Lengths
from identilens.models.fused import Scratch
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, places_of
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.sequences import names_at, sides
from identilens.runs.study import Output
from identilens.runs.tables import table_of
from identilens.studies.audit.certain import EXAMPLE_ROWS, sampled_rows
from identilens.studies.audit.result import Audit
from identilens.studies.audit.rows import ReceivedSums, certain_table_rows, scalars, table_columns
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.audit.text_measure import VALUES_AT_ONCE, WEIGHTS_AT_ONCE, TextMeasure

STREAM_LENGTH = 1024
"""With stream="auto", weights of longer texts are never held."""

_BLOCK_BYTES = 2 * 2**20


class Runner:
    """Runs parts of a corpus and measures every attention call on the way; ``keep`` are texts with matrices."""

    def __init__(
        self, lens: Lens, items: Sequence[Item], sites: tuple[Site, ...], settings: AuditSettings, keep: set[int]
    ) -> None:
        self.lens, self.items, self.sites, self.settings, self.keep = lens, items, sites, settings, keep
        special = getattr(lens.tokenizer, "all_special_tokens", ["[CLS]"])
        # Of very many texts it is not known beforehand which special tokens they hold.
        if isinstance(items, list):
            used = {token for item in items for tokens in item.tokens.values() for token in tokens} or {"[CLS]"}
            special = [token for token in special if token in used]
        self.type_names = type_names(special)
        self._factors: dict[int, OutputFactor] = {}
        self._stacked_ranks: dict[int, int] = {}
        _keep_freed_memory()

    def run(self, part: range) -> Output:
        """Return the tables and kept matrices of one part of the corpus."""
        return self.lens.in_batches(partial(self._run, part), self.settings.batch_size)

    def _run(self, part: range, batch_size: int) -> Output:
        measured = _Part(self)
        # Texts of like length share a batch, so that little is padded.
        order = sorted(part, key=lambda text: self.items[text].length)
        for batch in self.lens.batches(self.items, order, batch_size):
            items = [self.items[text] for text in batch]
            self.lens.run(items, partial(measured.attend, batch, Lengths(items)))
        return measured.output()

    def factor(self, call: AttentionCall) -> OutputFactor:
        """Return the small factor of each head's output projection, computed once a layer."""
        if call.index not in self._factors:
            self._factors[call.index] = OutputFactor.of(self.sites[call.index].output_projection)
        return self._factors[call.index]

    def stacked_rank(self, call: AttentionCall) -> int:
        """Return the rank of a layer's output projections, one head's below the other's, computed once a layer."""
        if call.index not in self._stacked_ranks:
            self._stacked_ranks[call.index] = stored_rank(self.sites[call.index].output_projection.flatten(0, 1))
        return self._stacked_ranks[call.index]

    def sampled(self, text: int, site: Site, queries: int) -> list[int]:
        """Return the rows of a layer's maps on one text whose certain mass is found."""
        count = self.settings.certain_rows
        if count is None:
            count = EXAMPLE_ROWS if text in self.keep and not self.settings.matrices else 0
        return sampled_rows(self.settings.seed, text, site.layer, site.kind, queries, count)

    def block(self, call: AttentionCall) -> int:
        """Return how many rows of a call's weights are held at a time."""
        _, heads, n, _ = call.query.shape
        mode = self.settings.stream
        if mode == "never" or (mode == "auto" and n <= STREAM_LENGTH):
            return n
        return max(8, _BLOCK_BYTES // (8 * heads * call.key.shape[-2]))


def _keep_freed_memory() -> None:
    """Let glibc hold on to freed memory, instead of returning it after a layer and asking for fresh pages at the next.

    Of free memory it holds twice the size of the largest block that was freed so far, of those up to 32 MiB. One of
    nearly this size is freed here; none of its pages is touched.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


class _Sequence(NamedTuple):
    """What stands at the queries or keys of a call."""

    tokens: Sequence[str]
    types: Float[Tensor, "token type"]


class _Part:
    """Measures the attention calls of one part's batches and gathers what they give."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        # Columns are made once the batches are through: reading a value would make a GPU wait after every layer.
        self.columns: list[Callable[[], dict[str, list[Any]]]] = []
        self.certain: list[dict[str, Any]] = []
        self.received = ReceivedSums(runner.type_names)
        self.matrices: dict[str, Tensor] = {}
        self.tokens: dict[int, dict[str, list[str]]] = {}
        self._scratch = Scratch()
        self._sequences: dict[tuple[int, str, int], _Sequence] = {}

    def output(self) -> Output:
        schema, blocks = pl.Schema(Audit.schema["table"]), [make() for make in self.columns]
        columns = {name: list(chain.from_iterable(block[name] for block in blocks)) for name in schema}
        table = pl.DataFrame(columns, schema=schema).sort("text", maintain_order=True)
        rows = table_of(Audit.schema["rows"], self.certain).sort("text", maintain_order=True)
        tables = {"table": table, "token_types": self.received.table(), "rows": rows}
        return Output(tables, self.matrices, self.tokens)

    def attend(self, batch: Sequence[int], lengths: Lengths, call: AttentionCall) -> Tensor:
        runner, site = self.runner, self.runner.sites[call.index]
        if runner.settings.layers is not None and site.layer not in runner.settings.layers:
            return call.run()
        output = call.query.new_empty(*call.query.shape[:1], call.query.shape[2], site.heads, call.value.shape[-1])
        bias = site.value_bias if runner.settings.value_bias == "out" else None
        for places, cut in self._alike(batch, lengths, site, call):
            texts, cut_call = [batch[place] for place in places], call.only(places, *cut)
            queries, keys = zip(*(self._sides(text, site, cut_call) for text in texts), strict=True)
            types = [side.types for side in queries], [side.types for side in keys]
            measure = TextMeasure(
                texts, site, cut_call, runner.factor(call), types, bias, texts[0] in runner.keep, self._scratch
            )
            for some, rows, part in measure.run(runner.block(cut_call)):
                output[places_of(places[some]), rows] = part
            output[places_of(places), cut_call.query.shape[2] :] = 0
            self._record(site, measure, queries, keys)
            self.matrices |= measure.matrices()
        return output

    def _alike(
        self, batch: Sequence[int], lengths: Lengths, site: Site, call: AttentionCall
    ) -> Iterator[tuple[list[int], tuple[int, int]]]:
        """Yield places in the batch that are measured at once, with their numbers of queries and keys.

        They have one length and one pattern of visible keys. Texts of which more than scalars is kept stand alone.
        """
        cuts = [lengths.of(place, site.kind, call) for place in range(len(batch))]
        seen = None if call.mask is None or call.mask.shape[0] == 1 else call.visible()
        waiting: dict[tuple[tuple[int, int], bytes | None], list[int]] = {}
        for place, (text, cut) in enumerate(zip(batch, cuts, strict=True)):
            alone = text in self.runner.keep or self.runner.sampled(text, site, cut[0])
            pattern = None if seen is None else seen[place, : cut[0], : cut[1]].cpu().numpy().tobytes()
            if alone:
                yield [place], cut
            else:
                waiting.setdefault((cut, pattern), []).append(place)
        for ((rows, columns), _), places in waiting.items():
            size = room(VALUES_AT_ONCE, call.value.device) // (site.heads * columns * call.value.shape[-1])
            one = call.only(places[:1], rows, columns)
            if len(places) > 1 and not one.sees_everything():
                # Of causal rows a block is held at a time, under other masks all.
                held = min(rows, BLOCK) if one.mask is None else rows
                size = min(size, room(WEIGHTS_AT_ONCE, call.value.device) // (4 * site.heads * held * columns))
            size = max(1, size)
            for start in range(0, len(places), size):
                yield places[start : start + size], (rows, columns)

    def _record(
        self, site: Site, measure: TextMeasure, queries: Sequence[_Sequence], keys: Sequence[_Sequence]
    ) -> None:
        """Turn what some texts gave in one layer into rows."""
        (summary, parked), certain = measure.finish(), []
        for text, sinks in zip(measure.texts, parked.sink.split(site.heads), strict=True):
            certain += (found := measure.certain(self.runner.sampled(text, site, measure.counts["n_query"]), sinks))
            self.certain += certain_table_rows(text, site, found)
        tokens, measures = [side.tokens for side in keys], scalars(summary, parked)
        counts = {**measure.counts, "stacked_rank": self.runner.stacked_rank(measure.call)}
        self.columns.append(partial(table_columns, measure.texts, site, counts, measures, certain, tokens))
        self.received.add(site, torch.cat([side.types for side in queries]).sum(0), summary)

    def _sides(self, text: int, site: Site, call: AttentionCall) -> tuple[_Sequence, _Sequence]:
        """Return what stands at the call's queries and at its keys."""
        query, key = sides(site.kind, self.runner.items[text].tokens)
        return self._sequence(text, query, call.query.shape[2]), self._sequence(text, key, call.key.shape[2])

    def _sequence(self, text: int, name: str, positions: int) -> _Sequence:
        """Return a sequence of a text, worked out once."""
        at = (text, name, positions)
        if at not in self._sequences:
            tokens = names_at(self.runner.items[text].tokens, name, positions, self.runner.lens.model.config)
            self._sequences[at] = _Sequence(tokens, token_types(tokens, self.runner.type_names))
            if text in self.runner.keep:
                self.tokens.setdefault(text, {})[name] = list(tokens)
        return self._sequences[at]
