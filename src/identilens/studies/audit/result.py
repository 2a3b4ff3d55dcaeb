"""The result of an audit: its table, what the token types receive, and the matrices that were kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.page import Section
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, percent
from identilens.studies.audit import reading, views
from identilens.studies.audit.maps import fitting_maps, kept_maps, page_maps, printed_maps

_MEASURES = ("rank", "nullity", "null_share", "pearson", "reconstruction_error")


@dataclass(frozen=True, kw_only=True)
class Audit(Result):
    """Every number of an audit.

    Matrices are ``text{t}.layer{l}.head{h}.{kind}.{raw|effective}`` of the texts that were kept; null attention is
    raw − effective. For masked rows ``row_rank`` and ``row_nullity`` stand beside them.

    Attributes:
        table: One row for each text, layer, head and kind.
        rows: What is certain of the rows that were drawn: certain mass, and the interval of attention on the sink.
        token_types: Attention that a query token of one type puts on all keys of another, on average.
    """

    analysis: ClassVar = "audit"
    title: ClassVar = "Attention audit"
    schema: ClassVar = {
        "table": {
            **HEAD, "n_query": pl.Int64, "n_key": pl.Int64, "d_k": pl.Int64, "d_v": pl.Int64, "rank": pl.Int64,
            "nullity": pl.Int64, "simplex_nullity": pl.Int64, "null_share": pl.Float64,
            "simplex_null_share": pl.Float64, "pearson": pl.Float64, "reconstruction_error": pl.Float64,
            "certain_mass": pl.Float64, "certain_mass_error": pl.Float64, "certain_rows": pl.Int64,
            "output_share": pl.Float64, "sink": pl.Int64, "sink_token": pl.String, "sink_mass": pl.Float64,
            "sink_norm_share": pl.Float64, "sink_value_norm": pl.Float64, "first_mass": pl.Float64,
        },
        "rows": {
            **HEAD, "query": pl.Int64, "certain_mass": pl.Float64, "sink_weight": pl.Float64, "sink_lo": pl.Float64,
            "sink_hi": pl.Float64,
        },
        "token_types": {
            "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "query_type": pl.String, "key_type": pl.String,
            "queries": pl.Int64, "raw": pl.Float64, "effective": pl.Float64,
        },
    }  # fmt: skip

    rows: pl.DataFrame
    token_types: pl.DataFrame

    def by_layer(self) -> pl.DataFrame:
        """Return the mean of each measure over texts and heads, by kind and layer."""
        return self._mean_by("kind", "layer")

    def by_head(self) -> pl.DataFrame:
        """Return the mean of each measure over texts, by kind, layer and head."""
        return self._mean_by("kind", "layer", "head")

    def by_length(self) -> pl.DataFrame:
        """Return the mean of each measure over heads, by kind and number of keys."""
        return self._mean_by("kind", "n_key")

    def received(self) -> pl.DataFrame:
        """Return the attention that each token type receives, averaged over all query tokens (Brunner Fig. 1b, 1c)."""
        keys, queries = ["kind", "layer", "head", "key_type"], pl.col("queries")
        means = [(pl.col(name) * queries).sum() / queries.sum() for name in ("raw", "effective")]
        return self.token_types.group_by(keys).agg(*means).sort(keys)

    def summary(self) -> Finding:
        """Return the finding: how much of the attention has no effect on the output, in numbers and plain words."""
        numbers = self.table.select(
            pl.len().alias("maps"), (pl.col("nullity") > 0).mean().alias("with_null_space"),
            pl.col("null_share", "pearson").mean(),
        ).row(0, named=True)  # fmt: skip
        pearson, share = numbers["pearson"], percent(numbers["null_share"])
        spaces = f"{100 * numbers['with_null_space']:.0f} %"
        headline = (
            (f"{numbers['maps']:,}", "attention maps audited (one for each text, layer and head)"),
            (spaces, "of them with a null space: directions of the weights that have no effect"),
            (share, "of squared attention weight without effect on the output (mean null share)"),
            ("undefined" if pearson is None else f"{pearson:.2f}", "mean correlation of raw and effective attention"),
        )
        return Finding("\n".join(self._sentences()), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the means by layer."""
        return {"Means by layer": self.by_layer()}

    def charts(self) -> dict[str, AnyChart]:
        """Return the charts by name.

        ``null_share_map`` and ``correlation_map`` (by layer and head), ``correlation_by_length`` (Brunner et al. 2020,
        Fig. 1a), ``token_types_raw`` and ``token_types_effective`` (Fig. 1b, 1c), ``attention_to_type`` (Fig. 5) and
        ``maps_text<t>_layer<l>_head<h>`` (Fig. 6; for each text whose matrices were kept, the head with the largest
        null share; the kind behind it where there are several).
        """
        by_head, received = self.by_head(), self.received()
        charts = {
            "null_share_map": views.null_share_map(by_head),
            "correlation_map": views.correlation_map(by_head),
            "correlation_by_length": views.correlation_by_length(self.table),
        }
        if len(self.token_types):
            charts |= {f"token_types_{name}": views.received_chart(received, name) for name in ("raw", "effective")}
            charts["attention_to_type"] = views.attention_to_type(self.token_types)
        return charts | printed_maps(kept_maps(self.table, self.matrices), self.matrices, self.tokens)

    def sections(self) -> list[Section]:
        """Return what the report shows under the finding."""
        types = ["token_types_raw", "token_types_effective", "attention_to_type"] if len(self.token_types) else []
        said = reading.TYPES if types else ["This audit holds no token types."]
        notes = views.heads_note(self.by_head()), views.length_note(self.table)
        heads = ["null_share_map", "correlation_map"]
        return [
            Section("heads", "Layer by layer, head by head", [reading.HEADS], heads, self.by_layer(), note=notes[0]),
            Section("length", "Correlation against length", [reading.LENGTH], ["correlation_by_length"], note=notes[1]),
            Section("types", "What token types receive", said, types),
            self._maps_section(),
            Section("reading", "How to read this report", reading.READING),
        ]

    def _maps_section(self) -> Section:
        kept = kept_maps(self.table, self.matrices)
        shown = fitting_maps(kept)
        title = "One attention map, split in two"
        if kept.is_empty():
            return Section("maps", title, note=reading.NO_MAPS)
        some = (
            f"The audit kept {len(kept)} maps; to keep this file small it holds {len(shown)} of them, of texts that do "
            "not fit whole the heads with the largest null share. In Python, Audit.load(folder).matrices has them all."
        )
        maps = page_maps(shown, self.matrices, self.tokens)
        return Section("maps", title, [reading.MAPS], maps=maps, note=some if len(shown) < len(kept) else "")

    def _mean_by(self, *keys: str) -> pl.DataFrame:
        return self.table.group_by(keys).agg(pl.col(_MEASURES).mean(), pl.len().alias("maps")).sort(keys)

    def _sentences(self) -> Iterator[str]:
        table, texts = self.table, self.table["text"].n_unique()
        maps = table.filter(pl.col("nullity") > 0)
        over = f"over {texts} {'text' if texts == 1 else 'texts'}"
        if maps.is_empty():
            whole = "every direction of the weights has an effect."
            yield f"None of {len(table)} attention maps {over} has a null space: {whole}"
            return
        yield (
            f"{len(maps)} of {len(table)} attention maps ({100 * len(maps) / len(table):.0f} %) {over} "
            "have a null space: some directions of the weights have no effect on the head's output."
        )
        worst = self.by_layer().sort("null_share", maintain_order=True).row(-1, named=True)
        yield (
            f"On average {percent(table['null_share'].mean())} of the squared attention weight lies in the null space "
            f"and has no effect on the output; most in {worst['kind']} layer {worst['layer']} "
            f"({percent(worst['null_share'])})."
        )
        types = self.received().group_by("key_type").agg(pl.col("raw", "effective").mean())
        lost = types.filter(pl.col("raw") > pl.col("effective")).sort(pl.col("raw") - pl.col("effective"), "key_type")
        if len(lost):
            most = lost.row(-1, named=True)
            yield (
                f"{most['key_type']} receives {percent(most['raw'])} of raw attention, "
                f"{percent(most['effective'])} of effective attention."
            )
