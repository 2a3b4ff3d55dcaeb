"""The result of an audit: its table, what the token types receive, and the matrices that were kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from shlex import quote
from typing import Any, ClassVar

import polars as pl

from identilens.charts.kit import Charts
from identilens.charts.labels import lower
from identilens.charts.notebook import MapView
from identilens.charts.page import Section
from identilens.charts.viewer import TokenMap
from identilens.errors import InputError
from identilens.runs.result import Finding, Result
from identilens.runs.settings import Kind, coerce
from identilens.runs.tables import (
    HEAD,
    Row,
    Tables,
    counted,
    decimals,
    integers,
    percent,
    some_of,
)
from identilens.studies.audit import views
from identilens.studies.audit.heads import (
    certain_error,
    effects_in_words,
    groups_table,
    heads_in_words,
    heads_table,
    stacked_in_words,
)
from identilens.studies.audit.maps import (
    certify_kept,
    fitting_maps,
    kept_maps,
    mean_maps,
    missing_layers,
    page_maps,
    printed_maps,
)
from identilens.studies.certify.result import Certainty
from identilens.studies.outcomes import ONLY_CHOSEN, normed_heads

_MEASURES = (
    "certain_mass",
    "certain_mass_bfloat16",
    "sink_mass",
    "sink_norm_share",
    "null_share",
    "simplex_null_share",
    "pearson",
    "rank",
    "nullity",
    "reconstruction_error",
)

# Of a masked map the nullity is that of the last row: others may see more keys. Shares below 1e-6 are rounding.
_NULL_SPACE = (pl.col("nullity") > 0) | (pl.col("null_share") > 1e-6)


@dataclass(frozen=True, kw_only=True)
class Audit(Result):
    """Every number of an audit.

    Matrices are ``text{t}.layer{l}.head{h}.{kind}.{raw|effective}`` of the texts that were kept; null attention is
    raw − effective. For masked rows ``row_rank`` and ``row_nullity`` stand beside them.

    Attributes:
        table: One row for each text, layer, head and kind.
        rows: What is certain of the rows that were drawn: certain mass, and the interval of attention on the sink.
        effects: The change of the model's answer without each head, in the examples: of the prediction in nats (the
            mean over positions), or of the final hidden states relative to their length; ``by`` removal or an estimate.
        token_types: Attention that a query token of one type puts on all keys of another, on average.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> audit = idl.audit(lens, idl.examples()[:1], layers=3, certain_rows=1)
        >>> audit.heads().select("layer", "head", "null_share", "certain_mass").head(2)
        shape: (2, 4)
        ┌───────┬──────┬────────────┬──────────────┐
        │ layer ┆ head ┆ null_share ┆ certain_mass │
        │ ---   ┆ ---  ┆ ---        ┆ ---          │
        │ i64   ┆ i64  ┆ f64        ┆ f64          │
        ╞═══════╪══════╪════════════╪══════════════╡
        │ 3     ┆ 0    ┆ 0.886712   ┆ 0.693109     │
        │ 3     ┆ 1    ┆ 0.576601   ┆ 0.80747      │
        └───────┴──────┴────────────┴──────────────┘
    """

    analysis: ClassVar = "audit"
    title: ClassVar = "Attention audit"
    schema: ClassVar = {
        "table": {
            **HEAD,
            **integers(
                "n_query", "n_key", "d_k", "d_v", "d_model", "rank", "nullity", "simplex_nullity"
            ),
            **decimals(
                "null_share",
                "simplex_null_share",
                "pearson",
                "reconstruction_error",
                "certain_mass",
                "certain_mass_bfloat16",
                "certain_mass_error",
            ),
            "certain_rows": pl.Int64,
            "output_share": pl.Float64,
            "sink": pl.Int64,
            "sink_token": pl.String,
            **decimals(
                "sink_mass", "sink_norm_share", "sink_value_norm", "first_mass", "learned_sink"
            ),
            "stacked_rank": pl.Int64,
        },
        "rows": {
            **HEAD,
            "query": pl.Int64,
            **decimals(
                "certain_mass", "certain_mass_bfloat16", "sink_weight", "sink_lo", "sink_hi"
            ),
        },
        "effects": {**HEAD, "outcome": pl.String, "by": pl.String, "effect": pl.Float64},
        "token_types": {
            "kind": pl.String,
            "layer": pl.Int64,
            "head": pl.Int64,
            "query_type": pl.String,
            "key_type": pl.String,
            "queries": pl.Int64,
            "raw": pl.Float64,
            "effective": pl.Float64,
        },
    }

    rows: pl.DataFrame
    effects: pl.DataFrame
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

    def heads(self) -> pl.DataFrame:
        """Return each head by both axes: certain mass, effect, where it parks attention, and its group.

        Means over texts. A head is *mostly certain* from a mean certain mass of 0.5 on (up to bfloat16's rounding), and
        *influential* if the model's prediction changes without it by at least a tenth (its final states by 0.3) of the
        change without the head that matters most; the group is missing where rows or effects were not looked at
        (certain_rows, effects).
        """
        return heads_table(self.table, self.rows, self.effects)

    def certify(
        self, text: int, layer: int, head: int, query: int | str, kind: Kind | None = None
    ) -> Certainty:
        """Return the certificate of one row of a map that was kept: intervals, influence, verdicts, order of keys.

        ``query`` is a position or a token; the kind is needed where the model has several. Needs no model; for texts
        whose matrices were not kept use `identilens.certify`.

        Raises:
            InputError: For a map that was not kept, a query that is not there, or weights in half precision.
            NumericalError: If an interval cannot be proven.
        """
        columns = {"layer": coerce("layer", int, layer), "head": coerce("head", int, head)}
        return certify_kept(self._kept_of(text, kind).filter(**columns), self, query)

    def view(self, text: int, layer: int, head: int, kind: Kind | None = None) -> MapView:
        """Return all maps of a text that were kept, open at one head: a notebook shows them, `to_html` writes them.

        Raises:
            InputError: For a map that was not kept.
        """
        kept = self._kept_of(text, kind)
        places = [
            row["layer"] == layer and row["head"] == head for row in kept.iter_rows(named=True)
        ]
        if True not in places:
            raise InputError(
                f"the map of text {text}, layer {layer}, head {head} was not saved. Save maps with examples= "
                "or matrices=True."
            )
        return MapView(page_maps(kept, self.matrices, self.tokens), places.index(True))

    def _kept_of(self, text: int, kind: Kind | None) -> pl.DataFrame:
        columns = {"text": coerce("text", int, text), "kind": coerce("kind", Kind | None, kind)}
        given = {name: value for name, value in columns.items() if value is not None}
        return kept_maps(self.table, self.matrices).filter(**given)

    def notebook_maps(self) -> Sequence[TokenMap]:
        """Return the maps of the first text that was kept."""
        kept = kept_maps(self.table, self.matrices)
        return (
            page_maps(kept.filter(text=kept["text"][0]), self.matrices, self.tokens)
            if len(kept)
            else ()
        )

    def summary(self) -> Finding:
        """Return the finding: how much is certain, how much has influence, how much has no effect."""
        mean = pl.col(
            "certain_mass",
            "certain_mass_bfloat16",
            "sink_mass",
            "sink_norm_share",
            "null_share",
            "pearson",
        ).mean()
        numbers = self.table.select(
            pl.len().alias("maps"),
            mean,
            with_null_space=_NULL_SPACE.mean(),
            certain_rows=pl.col("certain_rows").sum(),
        ).row(0, named=True)
        pearson, (error, _) = numbers["pearson"], certain_error(self.rows, self.table)
        spread = "" if error is None else f"± {100 * error:.1f} "
        exact = f"; {at_least(numbers['certain_mass'])} by the exact output"
        few = ", as rows see few keys" if self.table["simplex_nullity"].max() == 0 else ""
        headline = (
            (f"{numbers['maps']:,}", "attention maps audited (one for each text, layer and head)"),
            (
                at_least(numbers["certain_mass_bfloat16"])
                .replace("%", f"{spread}%")
                .replace(" ", "\u00a0")
                or "not looked at",
                "of a row's attention is certain: fixed by its head's output up to bfloat16's rounding (certain mass"
                f"{spread and ', with its standard error'}){exact + few if numbers['certain_rows'] else ''}",
            ),
            (
                f"{percent(numbers['sink_mass'])} → {percent(numbers['sink_norm_share'])}".replace(
                    " %", "\u00a0%"
                ),
                "of attention on one structural token a map → its share of the norms",
            ),
            (
                percent(numbers["null_share"]),
                "of squared weight in directions without effect (null share)",
            ),
            (
                "undefined" if pearson is None else f"{pearson:.2f}",
                "mean correlation of raw and effective attention",
            ),
        )
        return Finding("\n".join(self._sentences()), numbers, headline)

    def overview(self) -> Tables:
        """Return the means by layer that the finding rests on; `by_layer` has all of them."""
        shown = {
            "certain_mass_bfloat16": "certain",
            "certain_mass": "exactly",
            "sink_mass": "on sink",
            "sink_norm_share": "sink's norm",
            "null_share": "null share",
            "pearson": "pearson",
        }
        means = self.by_layer().select(
            "kind", "layer", *(pl.col(name).alias(short) for name, short in shown.items())
        )
        return {"Means by layer, as shares of 1 (certain: up to bfloat16's rounding)": means}

    def charts(self) -> Charts:
        """Return the charts by name.

        ``certain_and_influential`` (heads by both axes), ``certain_mass_map``, ``null_share_map`` and
        ``correlation_map`` (by layer and head), ``correlation_by_length`` (Brunner et al. 2020, Fig. 1a),
        ``token_types_raw`` and ``token_types_effective`` (Fig. 1b, 1c), ``attention_to_type`` (Fig. 5) and
        ``maps_text<t>_layer<l>_head<h>`` (Fig. 6; for each text whose matrices were kept, the head with the largest
        null share; the kind behind it where there are several).
        """
        return self.page_charts() | printed_maps(
            kept_maps(self.table, self.matrices), self.matrices, self.tokens
        )

    def page_charts(self) -> Charts:
        """Return the charts without the maps, which the report shows in its viewer."""
        by_head, received = self.by_head(), self.received()
        charts: Charts = {
            "certain_and_influential": views.certain_and_influential(self.heads()),
            "certain_mass_map": views.certain_mass_map(by_head),
            "null_share_map": views.null_share_map(by_head),
            "correlation_map": views.correlation_map(by_head),
            "correlation_by_length": views.correlation_by_length(self.table),
        }
        if len(self.token_types):
            charts |= {
                f"token_types_{name}": views.received_chart(received, name)
                for name in ("raw", "effective")
            }
            charts["attention_to_type"] = views.attention_to_type(self.token_types)
        return charts

    def sections(self) -> list[Section]:
        """Return what the report shows under the finding."""
        types = ["token_types_raw", "token_types_effective", "attention_to_type"]
        received = Section("types", "What token types receive", views.TYPES, types)
        notes = views.heads_note(self.by_head()), views.length_note(self.table)
        heads = ["null_share_map", "correlation_map"]
        return [
            self._groups_section(),
            self._maps_section(),
            Section(
                "heads",
                "Layer by layer, head by head",
                [views.HEADS],
                heads,
                self.by_layer(),
                note=notes[0],
            ),
            Section(
                "length",
                "Correlation against length",
                [views.LENGTH],
                ["correlation_by_length"],
                note=notes[1],
            ),
            *([received] if len(self.token_types) else []),
            Section("numbers", "Heads in numbers", frame=self.heads()),
            Section("reading", "How to read this report", [*views.AXES, *views.READING]),
        ]

    def _groups_section(self) -> Section:
        title = "Four groups of heads"
        if self.rows.is_empty() or self.effects.is_empty():
            return Section("groups", title, note=views.NO_ROWS)
        rows = (
            f"Certain mass rests on {self._sample()}; the rows of a text are drawn by the seed. Effects rest on "
            f"{counted(self.effects['text'].n_unique(), 'text')}, the other figures on all texts. A click on a head "
            "opens its map."
        )
        charts = ["certain_and_influential", "certain_mass_map"]
        return Section(
            "groups", title, [views.GROUPS], charts, groups_table(self.heads()), note=rows
        )

    def _maps_section(self) -> Section:
        kept = kept_maps(self.table, self.matrices)
        shown = fitting_maps(kept)
        title = "The maps"
        long = mean_maps(kept_maps(self.table, self.matrices, "means"), self.matrices, self.tokens)
        if kept.is_empty() and not long:
            return Section("maps", title, note=views.NO_MAPS)
        some = (
            f"The audit saved {len(kept):,} maps. To keep this file small, it shows {len(shown):,} of them, in whole "
            "layers, and names the layers that a text lacks. Audit.load(folder).matrices has all."
        )
        maps = page_maps(shown, self.matrices, self.tokens, missing_layers(kept, shown)) + long
        return Section(
            "maps", title, [views.MAPS], maps=maps, note=some if len(shown) < len(kept) else ""
        )

    def _mean_by(self, *keys: str) -> pl.DataFrame:
        return (
            self.table.group_by(keys)
            .agg(pl.col(_MEASURES).mean(), pl.len().alias("maps"))
            .sort(keys)
        )

    def _sample(self) -> str:
        """Return what the mean certain mass rests on: how many rows, of which texts, and its standard error."""
        rows, texts = len(self.rows), self.rows["text"].n_unique()
        of = self.table["text"].n_unique()
        some = f" in {texts:,} of the {of:,} texts, drawn by the seed" if texts < of else ""
        error, units = certain_error(self.rows, self.table)
        known = "" if error is None else f", standard error over {units} {100 * error:.1f} points"
        return f"{counted(rows, 'row')}{some}{known}"

    def _scope(self) -> Iterator[str]:
        """Yield what of the model is audited."""
        if others := self.provenance["model"].get("layers_without_attention"):
            yield f"Only attention is audited. {len(others)} of the model's layers have none: {', '.join(others)}."
        if mixing := self.provenance["model"].get("layers_with_other_mixers"):
            yield (
                f"Only attention is audited. In {len(mixing)} layers positions also mix by other means (a state "
                f"space, a convolution, pooling): {', '.join(mixing)}."
            )
        if asked := self.provenance["settings"].get("queries"):
            yield f"Of each map only these rows are measured: {', '.join(map(str, asked))}."
        model = self.provenance["model"]
        yield from normed_heads(model)
        if model.get("gated_heads") and not model.get("normed_heads"):
            yield (
                "The model gates its heads: each row has a factor of its own before the output projection. The output "
                "of a head is here what it mixes, before the gate; lengths of vectors are those before the gate, too."
            )

    def _sentences(self) -> Iterator[str]:
        yield from self._scope()
        table, texts = self.table, self.table["text"].n_unique()
        looked = table.filter(pl.col("certain_rows") > 0)
        if len(looked):
            yield from self._certain(looked)
        else:
            yield "Certain: not looked at. Choose rows with --certain-rows 4 (in Python: certain_rows=4)."
        token = table["sink_token"].mode().sort()[0]
        yield (
            f"Influential: {effects_in_words(self.heads(), self.effects)}. On average "
            f"{percent(table['sink_mass'].mean())} of a map's attention goes to one structural token, mostly {token}, "
            f"which brings {percent(table['sink_norm_share'].mean())} of what all keys add to the output, by vector "
            f"length.{ONLY_CHOSEN if self.provenance['settings'].get('layers') is not None else ''}"
        )
        over = f"{len(table):,} attention maps over {counted(texts, 'text')}"
        maps = table.filter(_NULL_SPACE)
        if maps.is_empty():
            yield f"No effect: no part of the weights of {over} lies in directions without effect on the output."
        else:
            worst = self.by_layer().sort("null_share", maintain_order=True).row(-1, named=True)
            mean, most = percent(table["null_share"].mean()), percent(worst["null_share"])
            apart = f", most in {_layer(worst)} ({most})" if most != mean else ""
            yield (
                f"No effect: {len(maps):,} of {over} have a null space; on average "
                f"{mean} of the squared weight lies in directions that have no "
                f"effect on the output{apart}. That does not make these weights free: "
                "they also stay positive and sum to 1."
            )
        if said := heads_in_words(self.heads()):
            yield said

    def _certain(self, looked: pl.DataFrame) -> Iterator[str]:
        """Yield how much of the maps that were looked at is certain, and what it rests on."""
        mass = "certain_mass_bfloat16"
        layers = self.by_layer().drop_nulls(mass).sort(mass, maintain_order=True)
        least, most = (layers.row(place, named=True) for place in (0, -1))
        low, high = (at_least(one[mass]) for one in (least, most))
        apart = (
            ""
            if low == high
            else f"; most in {_layer(most)} ({high}), least in {_layer(least)} ({low})"
        )
        yield (
            f"Certain: {at_least(looked[mass].mean())} of a row's attention is fixed by its head's output up to "
            f"a rounding to bfloat16 (0.4 % of its length), and {at_least(looked['certain_mass'].mean())} by the "
            "exact output. In all weights with such an output, at least this much lies on the same keys (certain "
            f"mass). It is {'a mean' if len(self.rows) > 1 else 'that'} of {self._sample()}{apart}."
        )
        yield from self._too_short(looked)
        if not self.provenance["model"].get("normed_heads"):
            yield stacked_in_words(self.table)

    def _too_short(self, looked: pl.DataFrame) -> Iterator[str]:
        """Yield that in some maps no other weights give the output, and what to do then, where that is so."""
        short = looked.filter(simplex_nullity=0)
        if not len(short):
            return
        typed: dict[str, str] = dict(pairwise(self.provenance.get("command") or ()))
        file = typed.get("--file", typed.get("-f", "FILE"))
        row = self.rows.sort("certain_mass_bfloat16", maintain_order=True).row(0, named=True)
        yield (
            f"In {some_of(len(short), len(looked), 'map')} looked at, no other weights give exactly this output: the "
            f"rows see too few tokens (at most {short['n_key'].max()}) for the size of the head (d_v = "
            f"{looked['d_v'].max()}). Use longer texts, or see what is left of a row when its output may change by 1 "
            f"%: identilens certify --model {quote(self.provenance['model']['name'])} --file {quote(file)} --limit "
            f"{row['text'] + 1} --layers {row['layer']} --heads {row['head']} --queries {row['query']} --tolerance 1% "
            f"--out row ({'FILE: your texts; ' * (file == 'FILE')}in Python: identilens.certify, tolerance=0.01)."
        )


def _layer(row: Row) -> str:
    return f"{row['kind']} layer {row['layer']}"


def at_least(share: Any) -> str:
    """Return a proven lower end of a share in words, with one decimal; nothing for None."""
    return "" if share is None else f"{lower(100 * share, '.1f')} %"
