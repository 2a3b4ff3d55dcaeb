"""Measures taken while the model runs: each attention call of a batch becomes rows of the audit's tables."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from identilens.linalg import row_factor
from identilens.measures.attention.token_types import token_types, type_names
from identilens.models.capture import Lengths
from identilens.models.inputs import Item, alike
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.sequences import names_at, sides
from identilens.runs.study import Output
from identilens.runs.tables import table_of
from identilens.studies.audit.certain import EXAMPLE_ROWS, sampled_rows
from identilens.studies.audit.result import Audit
from identilens.studies.audit.rows import ReceivedSums, certain_table_rows, table_rows
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.audit.text_measure import TextMeasure

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
        self._factors: dict[int, Tensor] = {}

    def run(self, part: range) -> Output:
        """Return the tables and kept matrices of one part of the corpus."""
        measured = _Part(self)
        # Texts of like length share a batch, so that little is padded.
        order = sorted(part, key=lambda text: self.items[text].length)
        for batch in alike(self.items, order, self.settings.batch_size):
            items = [self.items[text] for text in batch]
            self.lens.run(items, partial(measured.attend, batch, Lengths(items)))
        return measured.output()

    def factor(self, call: AttentionCall) -> Tensor:
        """Return the small factor of each head's output projection, computed once a layer."""
        if call.index not in self._factors:
            self._factors[call.index] = row_factor(self.sites[call.index].output_projection)
        return self._factors[call.index]

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


class _Part:
    """Measures the attention calls of one part's batches and gathers what they give."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.rows: list[dict[str, Any]] = []
        self.certain: list[dict[str, Any]] = []
        self.received = ReceivedSums(runner.type_names)
        self.matrices: dict[str, Tensor] = {}
        self.tokens: dict[int, dict[str, list[str]]] = {}
        self._types: dict[tuple[int, str, int], Tensor] = {}

    def output(self) -> Output:
        table = table_of(Audit.schema["table"], self.rows).sort("text", maintain_order=True)
        rows = table_of(Audit.schema["rows"], self.certain).sort("text", maintain_order=True)
        tables = {"table": table, "token_types": self.received.table(), "rows": rows}
        return Output(tables, self.matrices, self.tokens)

    def attend(self, batch: Sequence[int], lengths: Lengths, call: AttentionCall) -> Tensor:
        runner, site = self.runner, self.runner.sites[call.index]
        if runner.settings.layers is not None and site.layer not in runner.settings.layers:
            return call.run()
        output = call.query.new_zeros(*call.query.shape[:1], call.query.shape[2], site.heads, call.value.shape[-1])
        bias = site.value_bias if runner.settings.value_bias == "out" else None
        for index, text in enumerate(batch):
            own = call.only(index, *lengths.of(index, site.kind, call))
            types = self._token_types(text, site, own)
            measure = TextMeasure(text, site, own, runner.factor(call), types, bias, text in runner.keep)
            output[index, : own.query.shape[2]] = measure.run(runner.block(own))
            summary, parked = measure.finish()
            queries = runner.sampled(text, site, own.query.shape[2])
            certain = measure.certain(queries, parked.sink.tolist())
            self.rows += table_rows(text, site, measure.counts, summary, parked, certain, self._keys(text, site, own))
            self.certain += certain_table_rows(text, site, certain)
            self.received.add(site, types[0].sum(0), summary)
            self.matrices |= measure.matrices()
        return output

    def _keys(self, text: int, site: Site, call: AttentionCall) -> Sequence[str]:
        """Return what stands at the call's keys."""
        held = self.runner.items[text].tokens
        return names_at(held, sides(site.kind, held).key, call.key.shape[2], self.runner.lens.model.config)

    def _token_types(self, text: int, site: Site, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Return the types of the call's queries and keys, worked out once for each sequence."""
        held = self.runner.items[text].tokens
        places = [
            (text, sequence, tensor.shape[2])
            for sequence, tensor in zip(sides(site.kind, held), (call.query, call.key), strict=True)
        ]
        for key in places:
            if key not in self._types:
                tokens = names_at(held, *key[1:], self.runner.lens.model.config)
                self._types[key] = token_types(tokens, self.runner.type_names)
                if text in self.runner.keep:
                    self.tokens.setdefault(text, {})[key[1]] = list(tokens)
        return self._types[places[0]], self._types[places[1]]
