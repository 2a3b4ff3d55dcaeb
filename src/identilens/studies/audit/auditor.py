"""Measures taken while the model runs: each attention call of a batch becomes rows of the audit's tables."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import NumericalError
from identilens.linalg import OutputFactor
from identilens.linalg.memory import blocks, held_by
from identilens.linalg.rows import FullRows
from identilens.measures.attention.layer import LayerMeasures, measure_layer
from identilens.models.capture import Lengths
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layer_batch import LayerBatch
from identilens.models.layout import Site, Sites
from identilens.models.lens import Lens
from identilens.models.sequences import names_at, sides
from identilens.runs.matrices import MatrixKey
from identilens.runs.study import Output
from identilens.runs.tables import HEAD, Row
from identilens.studies.audit.result import Audit
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.certify.rows import certain_rows
from identilens.studies.drawn import ALIKE, drawn_rows
from identilens.studies.heads import Place, asked_places, filled
from identilens.studies.items import Items

_MEASURES = (
    "rank",
    "nullity",
    "simplex_nullity",
    "null_share",
    "simplex_null_share",
    "pearson",
    "reconstruction_error",
    "sink",
    "sink_mass",
    "sink_norm_share",
    "sink_value_norm",
    "first_mass",
    "learned_sink",
    "output_share",
)


_Columns = dict[str, Any]

_CERTAIN = ("certain_mass", "certain_mass_bfloat16", "certain_mass_error", "certain_rows")


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
        sites: Sites,
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
        self.type_names = type_names(
            [token for token in special if token in (items.names or {"[CLS]"})]
        )
        self._factors: dict[tuple[int, ...], OutputFactor] = {}
        self.start_part()

    def start_part(self) -> None:
        """Forget what was gathered for the part before."""
        # Columns are made once the batches are through: reading a value would make a GPU wait after every layer.
        self._layers: list[tuple[int, Callable[[int], _Columns]]] = []
        self._certain: list[tuple[int, Row]] = []
        self._received: list[Callable[[], _Columns]] = []
        self._matrices: dict[str, Tensor] = {}
        self._tokens: dict[int, dict[str, list[str]]] = {}
        self._sequence = lru_cache(None)(self._read_sequence)

    def start_batch(self, texts: Sequence[int]) -> list[Item]:
        """Return the items of the texts whose calls come next."""
        items = [self.items[text] for text in texts]
        self._batch, self._lengths = texts, Lengths(items)
        self._calls: list[AttentionCall] = []
        return items

    def output(self, effects: Sequence[Row]) -> Output:
        """Return the tables and kept matrices of the part, with the effects of heads."""
        first = itemgetter(0)
        ranks = {number: self.sites[number].stacked_rank for number in dict(self._layers)}
        layers = [columns(ranks[number]) for number, columns in sorted(self._layers, key=first)]
        certain = [row for _, row in sorted(self._certain, key=first)]
        parts = {"table": layers, "rows": [certain], "effects": [effects]}
        received = [columns() for columns in self._received]
        tables = filled(Audit.schema, {**parts, "token_types": received})
        for name in parts:
            tables[name] = tables[name].sort("text", maintain_order=True)
        tables["table"] = with_certain_mass(tables["table"], tables["rows"])
        tables["token_types"] = added(tables["token_types"])
        return Output(tables, self._matrices, self._tokens)

    def measure(self, call: AttentionCall) -> Tensor:
        """Answer one attention call of the batch, which is measured with those of other layers, as memory allows."""
        site = self.sites[call.index]
        if self.settings.layers is None or site.layer in self.settings.layers:
            self._calls.append(call)
            held = sum(map(_held, self._calls))
            if len(blocks(2, held // 2, call.value.device)) == 2:
                self.measure_calls()
        return call.run()

    @torch.no_grad()
    def measure_calls(self) -> None:
        """Measure the calls of the batch that were not measured yet: layers of one shape and mask together."""
        alike: dict[Hashable, list[AttentionCall]] = {}
        for call in self._calls:
            alike.setdefault(_shape_of(self.sites[call.index], call), []).append(call)
        self._calls = []
        for calls in alike.values():
            sites = [self.sites[call.index] for call in calls]
            try:
                self._measure_layers(sites, calls)
            except NumericalError as error:
                raise NumericalError(
                    f"texts {min(self._batch)} to {max(self._batch)}, {sites[0].kind} layers {sites[0].layer} to "
                    f"{sites[-1].layer}: {error}"
                ) from error

    def _measure_layers(self, sites: Sequence[Site], calls: Sequence[AttentionCall]) -> None:
        numbers = tuple(call.index for call in calls)
        if numbers not in self._factors:
            self._factors[numbers] = OutputFactor.of(*(site.fixed_projection for site in sites))
        factor, settings, first = self._factors[numbers], self.settings, sites[0]
        for places, cut in self._alike(first, calls):
            texts = [self._batch[row] for row in places]
            cut_calls = [call.only(places, *cut) for call in calls]
            queries, keys = (
                [
                    self._sequence(text, sides(first.kind, self.items[text].tokens)[end], size)
                    for text in texts
                ]
                for end, size in enumerate(cut)
            )
            asked = range(cut[0])
            if settings.queries:
                [(names, types)] = queries
                asked = asked_places(names, settings.queries)
                if not asked:
                    continue
                cut_calls = [call.rows(asked) for call in cut_calls]
                queries = [_Sequence([names[query] for query in asked], types[asked])]
            layer = LayerBatch(
                texts,
                sites,
                cut_calls,
                factor.grouped(len(texts), cut_calls[0].value.shape[1]),
                ([side.types for side in queries], [side.types for side in keys]),
                keeps_maps=texts[0] in self.keep,
                keeps_means=texts[0] in self.means,
            )
            measures = measure_layer(layer)
            asking = torch.cat([side.types for side in queries]).sum(0)
            received = measures.received.unflatten(1, (len(sites), -1, layer.heads)).sum(2)
            sizes = "n_query", "n_key", "d_k", "d_v"
            counts = {name: getattr(layer, name) for name in sizes}
            counts["d_model"] = factor.d_model
            columns = scalars(measures).split(len(texts) * layer.heads, 1)
            self._received.append(
                partial(received_columns, sites, self.type_names, asking, received)
            )
            for number, site in enumerate(sites):
                self._certify(layer, number, measures, asked)
                tokens = [side.tokens for side in keys]
                table = partial(layer_columns, texts, site, counts, columns[number], tokens)
                self._layers.append((cut_calls[number].index, table))
                self._matrices |= _matrices(texts[0], layer, number, measures)

    def _alike(
        self, site: Site, calls: Sequence[AttentionCall]
    ) -> Iterator[tuple[list[int], tuple[int, int]]]:
        """Yield places in the batch that are measured at once, with their numbers of queries and keys.

        They have one length and one pattern of visible keys. Texts of which more than scalars is kept stand alone.
        """
        call = calls[0]
        visible = None if call.mask is None or call.mask.shape[0] == 1 else call.visible()
        waiting: dict[tuple[tuple[int, int], bytes | None], list[int]] = {}
        for row, text in enumerate(self._batch):
            cut = self._lengths.of(row, site.kind, call)
            pattern = (
                None
                if visible is None
                else visible[row, : cut[0], : cut[1]].cpu().numpy().tobytes()
            )
            drawn = self.settings.queries or self._sampled(text, site, cut[0])
            if drawn or text in self.keep | self.means:
                yield [row], cut
            else:
                waiting.setdefault((cut, pattern), []).append(row)
        held = sum(map(_held, calls)) // len(self._batch)
        for (cut, _), places in waiting.items():
            for some in blocks(len(places), held, call.value.device):
                yield places[some], cut

    def _sampled(self, text: int, site: Site, queries: int) -> list[int]:
        """Return the rows of a layer's maps on one text whose certain mass is computed."""
        count = self.settings.certain_rows
        count = self.rows.get(text, 0) if count is None else count
        return drawn_rows(self.settings.seed, text, site.layer, site.kind, queries, count)

    def _certify(
        self, layer: LayerBatch, number: int, measures: LayerMeasures, asked: Sequence[int]
    ) -> None:
        """Keep what is certain of a layer's sampled rows; ``asked`` are the positions of the layer's rows."""
        site = layer.sites[number]
        sinks = measures.sink.unflatten(0, (len(layer.sites), len(layer.texts), -1))[number]
        for text, of_heads in zip(layer.texts, sinks, strict=True):
            queries = self._sampled(text, site, layer.n_query)
            if not queries:
                continue
            places = [asked[query] for query in queries]
            for row in certain_rows(*layer.rows(number, queries), places, of_heads.tolist()):
                head = Place(text, site, row["head"]).row
                self._certain.append((layer.calls[number].index, head | row))

    def _read_sequence(self, text: int, name: str, positions: int) -> _Sequence:
        """Return a sequence of a text."""
        tokens = names_at(self.items[text].tokens, name, positions, self.lens.model.config)
        if text in self.keep | self.means:
            self._tokens.setdefault(text, {})[name] = list(tokens)
        return _Sequence(tokens, token_types(tokens, self.type_names))


def _held(call: AttentionCall) -> int:
    return held_by(call.value, call.query.shape[1])


def _shape_of(site: Site, call: AttentionCall) -> Hashable:
    """Return what layers that are measured together have in common."""
    shapes = call.query.shape, call.key.shape, call.value.shape, site.fixed_projection.shape
    terms = call.scaling, call.arguments.get("softcap"), call.has_sink, call.windows
    mask = call.is_causal if call.mask is None else id(call.mask)
    biased = call.arguments.get("position_bias") is not None
    return site.kind, shapes, terms, mask, biased, call.value.device, call.value.dtype


def _matrices(
    text: int, layer: LayerBatch, number: int, measures: LayerMeasures
) -> dict[str, Tensor]:
    """Return what is kept of a layer by key: raw and effective attention, each row's rank where rows are masked, means.

    Values are kept of heads of whose weights something can be proven: the others have a sink, or weights that are
    known in half precision only.
    """
    kept, site = dict(measures.kept), layer.sites[number]
    if "raw" in kept:
        projector = layer.projector
        kept["values"] = projector.compact
        if not isinstance(projector, FullRows):
            ranks, visible = projector.row_ranks(), projector.visible
            kept |= {"row_rank": ranks, "row_nullity": projector.sizes + layer.has_sink - ranks}
            kept["visible"] = visible.expand(len(ranks), -1, -1)
    return {
        str(MatrixKey(text, site.layer, head, site.kind, name)): tensor[number * layer.heads + head]
        .cpu()
        .contiguous()
        for head in range(layer.heads)
        for name, tensor in kept.items()
        if name != "values" or layer.follows[number, head]
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
    types = [
        index.get(token, index[PUNCTUATION if token.strip(_MARKS) in (".", ",") else OTHER])
        for token in tokens
    ]
    if FIRST in index:
        types[:1] = [index[FIRST]]
    return torch.nn.functional.one_hot(torch.tensor(types, dtype=torch.int64), len(names)).double()


def scalars(measures: LayerMeasures) -> Float[Tensor, "measure head"]:
    """Return the measures that become columns, in a tensor of their own: what they were computed from is not kept."""
    return torch.stack([getattr(measures, name).double() for name in _MEASURES])


def layer_columns(
    texts: Sequence[int],
    site: Site,
    counts: dict[str, int],
    measures: Float[Tensor, "measure head"],
    keys: Sequence[Sequence[str]],
    stacked_rank: int,
) -> _Columns:
    """Return columns of the audit table: the heads of a layer, one text after the other.

    Args:
        texts: Numbers of the texts.
        site: The layer.
        counts: Columns that all rows share.
        measures: The `scalars`.
        keys: The tokens at each text's keys.
        stacked_rank: `Site.stacked_rank`.
    """
    columns = dict(zip(_MEASURES, measures.tolist(), strict=True))
    tokens = [names for names in keys for _ in range(site.heads)]
    sinks = zip(tokens, columns["sink"], strict=True)
    same = counts | {"layer": site.layer, "kind": site.kind, "stacked_rank": stacked_rank}
    return {
        **{name: [value] * len(tokens) for name, value in same.items()},
        **columns,
        "text": np.repeat(texts, site.heads),
        "head": [*range(site.heads)] * len(texts),
        "sink_token": [names[int(key)] for names, key in sinks],
    }


def with_certain_mass(table: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the table with the mean certain mass of the rows that were drawn of each map, and its standard error.

    Rows are drawn without repetition: the error is that of a finite population, 0 when every row was taken. Drawn rows
    that are all alike do not tell it; but where nothing is free, the rows that were not drawn are known, too.
    """
    mass, drawn, population = map(pl.col, ("certain_mass", "certain_rows", "n_query"))
    means = rows.group_by(list(HEAD)).agg(
        pl.col("certain_mass", "certain_mass_bfloat16").mean(),
        certain_mass_error=mass.std() * (1 / pl.len()).sqrt(),
        apart=mass.max() - mass.min(),
        certain_rows=pl.len().cast(pl.Int64),
    )
    error = pl.col("certain_mass_error") * (1 - drawn / population).sqrt()
    known = mass.is_not_null() & ((drawn == population) | (pl.col("simplex_nullity") == 0))
    return (
        table.drop(_CERTAIN)
        .join(means, on=list(HEAD), how="left", maintain_order="left")
        .with_columns(
            drawn.fill_null(0),
            certain_mass_error=pl.when(known).then(0.0).when(pl.col("apart") > ALIKE).then(error),
        )
        .select(table.columns)
    )


def received_columns(
    sites: Sequence[Site],
    names: Sequence[str],
    counts: Float[Tensor, " type"],
    received: Float[Tensor, "two layer head type type"],
) -> _Columns:
    """Return columns of the token type table of some texts: sums over the query tokens of each type.

    Args:
        sites: The layers, of one kind.
        names: Names of the types.
        counts: Query tokens of each type.
        received: What they give to each type, in raw and in effective attention.
    """
    layers, heads, queries, keys = np.indices(received.shape[1:]).reshape(4, -1)
    raw, effective = received.cpu().flatten(1).numpy()
    return {
        "kind": sites[0].kind,
        "layer": [sites[layer].layer for layer in layers],
        "head": heads,
        "query_type": [names[query] for query in queries],
        "key_type": [names[key] for key in keys],
        "queries": counts.long().cpu().numpy()[queries],
        "raw": raw,
        "effective": effective,
    }


def added(parts: pl.DataFrame) -> pl.DataFrame:
    """Return rows of the token type table of several texts as one."""
    keys = ["kind", "layer", "head", "query_type", "key_type"]
    sums = pl.col("queries", "raw", "effective").sum()
    return parts.group_by(keys, maintain_order=True).agg(sums)


def means_by_type(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the token type table: means over all query tokens of a type."""
    sums = added(parts).filter(pl.col("queries") > 0)
    means = sums.with_columns(pl.col("raw", "effective") / pl.col("queries"))
    return means.sort("kind", "layer", "head", maintain_order=True)
