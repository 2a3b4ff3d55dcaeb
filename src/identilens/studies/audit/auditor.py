"""Measures taken while the model runs: each attention call of a batch becomes rows of the audit's tables."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import OutputFactor
from identilens.linalg.memory import blocks
from identilens.linalg.rows import FullRows
from identilens.measures.attention.layer import LayerMeasures, measure_layer
from identilens.models.capture import Lengths
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, places_of
from identilens.models.layer_batch import LayerBatch
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.sequences import names_at, sides
from identilens.runs.matrices import MatrixKey
from identilens.runs.study import Output
from identilens.runs.tables import Row, table_of
from identilens.studies.audit.certain import certain_rows
from identilens.studies.audit.result import Audit
from identilens.studies.audit.rows import LayerRows, ReceivedSums, scalars
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.drawn import drawn_rows
from identilens.studies.heads import asked_places
from identilens.studies.items import Items


class _Sequence(NamedTuple):
    """The tokens at the queries or keys of a call, and their types."""

    tokens: Sequence[str]
    types: Float[Tensor, "token type"]


class Auditor:
    """Measures the attention calls of batches, and gathers the tables of one part of a run after the other.

    Args:
        keep: Texts whose matrices are kept.
        means: Texts of whose maps means over blocks are kept.
        rows: Rows of each map whose certain mass is computed, by text, where the settings name no number.
    """

    def __init__(
        self,
        lens: Lens,
        items: Items,
        sites: tuple[Site, ...],
        settings: AuditSettings,
        keep: set[int],
        means: set[int],
        rows: Mapping[int, int],
    ) -> None:
        self.lens = lens
        self.items = items
        self.sites = sites
        self.settings = settings
        self.keep, self.means, self.rows = keep, means, rows
        special = getattr(lens.tokenizer, "all_special_tokens", ["[CLS]"])
        used = items.names or {"[CLS]"}
        special = [token for token in special if token in used]
        self.type_names = type_names(special)
        self._factors: dict[int, OutputFactor] = {}
        self.start_part()

    def start_part(self) -> None:
        """Forget what was gathered for the part before."""
        # Columns are made once the batches are through: reading a value would make a GPU wait after every layer.
        self._layers: list[LayerRows] = []
        self._certain: list[Row] = []
        self._received = ReceivedSums(self.type_names)
        self._matrices: dict[str, Tensor] = {}
        self._tokens: dict[int, dict[str, list[str]]] = {}
        self._sequences: dict[tuple[int, str, int], _Sequence] = {}

    def start_batch(self, texts: Sequence[int]) -> list[Item]:
        """Return the items of the texts whose calls come next."""
        items = [self.items[text] for text in texts]
        self._batch, self._lengths = texts, Lengths(items)
        return items

    def output(self) -> Output:
        """Return the tables and kept matrices of the part."""
        schema = pl.Schema(Audit.schema["table"])
        blocks = [layer.columns() for layer in self._layers]
        columns = {
            name: list(chain.from_iterable(block[name] for block in blocks)) for name in schema
        }
        table = pl.DataFrame(columns, schema=schema).sort("text", maintain_order=True)
        rows = table_of(Audit.schema["rows"], self._certain).sort("text", maintain_order=True)
        return Output(
            {"table": table, "token_types": self._received.table(), "rows": rows},
            self._matrices,
            self._tokens,
        )

    def measure(self, call: AttentionCall) -> Tensor:
        """Measure one attention call of the batch, and return its output."""
        site, settings = self.sites[call.index], self.settings
        if settings.layers is not None and site.layer not in settings.layers:
            return call.run()
        if call.index not in self._factors:
            self._factors[call.index] = OutputFactor.of(site.fixed_projection)
        factor = self._factors[call.index]
        output = call.query.new_zeros(
            len(call.query), call.query.shape[2], site.heads, call.value.shape[-1]
        )
        for places, cut in self._alike(site, call):
            texts, cut_call = [self._batch[place] for place in places], call.only(places, *cut)
            queries, keys = zip(*(self._sides(text, site, cut_call) for text in texts), strict=True)
            asked, whole = range(cut[0]), None
            if settings.queries:
                names = queries[0].tokens
                asked, whole = asked_places(names, settings.queries), cut_call.run()
                if not asked:
                    output[places_of(places), : cut[0]] = whole
                    continue
                cut_call = cut_call.rows(asked)
                queries = [_Sequence([names[at] for at in asked], queries[0].types[asked])]
            layer = LayerBatch(
                texts,
                site,
                cut_call,
                factor,
                ([side.types for side in queries], [side.types for side in keys]),
                value_bias=site.value_bias if settings.value_bias == "out" else None,
                keeps_maps=texts[0] in self.keep,
                keeps_means=texts[0] in self.means,
            )
            measures = measure_layer(layer)
            layer.require_finite(measures.output_norm, "output")
            output[places_of(places), : cut[0]] = layer.output if whole is None else whole
            certain = self._certain_rows(layer, measures, asked)
            counts = {
                "n_query": layer.n_query,
                "n_key": layer.n_key,
                "d_k": layer.d_k,
                "d_v": layer.d_v,
                "d_model": factor.d_model,
                "stacked_rank": self.lens.stacked_rank(site),
            }
            tokens = [side.tokens for side in keys]
            self._layers.append(LayerRows(texts, site, counts, scalars(measures), certain, tokens))
            self._received.add(site, torch.cat([side.types for side in queries]).sum(0), measures)
            self._matrices |= _matrices(texts[0], layer, measures)
        return output

    def _alike(
        self, site: Site, call: AttentionCall
    ) -> Iterator[tuple[list[int], tuple[int, int]]]:
        """Yield places in the batch that are measured at once, with their numbers of queries and keys.

        They have one length and one pattern of visible keys. Texts of which more than scalars is kept stand alone.
        """
        seen = None if call.mask is None or call.mask.shape[0] == 1 else call.visible()
        waiting: dict[tuple[tuple[int, int], bytes | None], list[int]] = {}
        for place, text in enumerate(self._batch):
            cut = self._lengths.of(place, site.kind, call)
            pattern = (
                None if seen is None else seen[place, : cut[0], : cut[1]].cpu().numpy().tobytes()
            )
            drawn = self.settings.queries or self._sampled(text, site, cut[0])
            if drawn or text in self.keep | self.means:
                yield [place], cut
            else:
                waiting.setdefault((cut, pattern), []).append(place)
        for ((rows, columns), _), places in waiting.items():
            values = site.heads * columns * call.value.shape[-1]
            # Values, whitened values and their factors, in float64.
            for some in blocks(len(places), 32 * values, call.value.device):
                yield places[some], (rows, columns)

    def _sampled(self, text: int, site: Site, queries: int) -> list[int]:
        """Return the rows of a layer's maps on one text whose certain mass is computed."""
        count = self.settings.certain_rows
        count = self.rows.get(text, 0) if count is None else count
        return drawn_rows(self.settings.seed, text, site.layer, site.kind, queries, count)

    def _certain_rows(
        self, layer: LayerBatch, measures: LayerMeasures, asked: Sequence[int]
    ) -> list[list[Row]]:
        """Return, head by head, what is certain of the sampled rows; they also become rows of a table.

        ``asked`` are the positions of the layer's rows.
        """
        certain = []
        for text, sinks in zip(layer.texts, measures.sink.split(layer.heads), strict=True):
            queries = self._sampled(text, layer.site, layer.n_query)
            heads = (
                certain_rows(*layer.rows(queries), [asked[at] for at in queries], sinks.tolist())
                if queries
                else [[]] * layer.heads
            )
            place = {"text": text, "layer": layer.site.layer, "kind": layer.site.kind}
            self._certain += [
                place | {"head": head} | row for head, rows in enumerate(heads) for row in rows
            ]
            certain += heads
        return certain

    def _sides(self, text: int, site: Site, call: AttentionCall) -> tuple[_Sequence, _Sequence]:
        """Return the tokens at the call's queries and at its keys."""
        query, key = sides(site.kind, self.items[text].tokens)
        return self._sequence(text, query, call.query.shape[2]), self._sequence(
            text, key, call.key.shape[2]
        )

    def _sequence(self, text: int, name: str, positions: int) -> _Sequence:
        """Return a sequence of a text, worked out once."""
        at = (text, name, positions)
        if at not in self._sequences:
            tokens = names_at(self.items[text].tokens, name, positions, self.lens.model.config)
            self._sequences[at] = _Sequence(tokens, token_types(tokens, self.type_names))
            if text in self.keep | self.means:
                self._tokens.setdefault(text, {})[name] = list(tokens)
        return self._sequences[at]


def _matrices(text: int, layer: LayerBatch, measures: LayerMeasures) -> dict[str, Tensor]:
    """Return what is kept of a layer by key: raw and effective attention, each row's rank where rows are masked, means.

    Values are kept of heads of whose weights something can be proven: the others have a sink, or weights that are
    known in half precision only.
    """
    kept, projector = {}, layer.projector
    if measures.means is not None:
        kept["means"] = measures.means.float()
    if measures.maps is not None:
        raw, effective = measures.maps
        kept |= {"raw": raw, "effective": effective, "values": projector.compact}
    if measures.maps is not None and not isinstance(projector, FullRows):
        ranks, seen = projector.row_ranks(), projector.seen(slice(None))
        kept |= {"row_rank": ranks, "row_nullity": projector.row_sizes() + layer.has_sink - ranks}
        kept |= {"visible": seen.expand(layer.heads, -1, -1)}
    return {
        str(MatrixKey(text, layer.site.layer, head, layer.site.kind, name)): tensor[head]
        .cpu()
        .contiguous()
        for head in range(layer.heads)
        for name, tensor in kept.items()
        if name != "values" or head not in layer.unproven
    }


PUNCTUATION = ". ,"
"""Name of the type of full stops and commas."""

FIRST = "first token"
"""Name of the type of the first token, for models whose texts have no special tokens."""

OTHER = "other"
"""Name of the type of all other tokens."""

_MARKS = "Ġ▁Ċ# \n"


def type_names(special_tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all types: each special token (or the first token), full stops and commas, other tokens."""
    return (*(dict.fromkeys(special_tokens) or [FIRST]), PUNCTUATION, OTHER)


def token_types(tokens: Sequence[str], names: Sequence[str]) -> Float[Tensor, "token type"]:
    """Return the type of each token as a one-hot row, float64."""
    index = {name: position for position, name in enumerate(names)}
    found = [
        index[token]
        if token in index
        else index[PUNCTUATION if token.strip(_MARKS) in (".", ",") else OTHER]
        for token in tokens
    ]
    if FIRST in index:
        found[:1] = [index[FIRST]]
    return torch.nn.functional.one_hot(torch.tensor(found, dtype=torch.int64), len(names)).double()
