"""The result of an audit: its table, what the token types receive, and the matrices that were kept."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.kit import lines, scatter
from identilens.charts.notebook import MapView
from identilens.charts.viewer import TokenMap
from identilens.charts.views import View
from identilens.errors import InputError
from identilens.runs.result import Finding, Result
from identilens.runs.settings import Kind
from identilens.runs.tables import HEAD, decimals, integers
from identilens.studies.audit.heads import (
    GROUPS,
    certain_error,
    effect_numbers,
    groups_table,
    heads_table,
    stacked_numbers,
)
from identilens.studies.audit.maps import (
    fitting_maps,
    kept_maps,
    page_maps,
)
from identilens.studies.outcomes import ONLY_FEW, scope

_FINDING = """\
Certain: {certain_mass_bfloat16:≥.1%} of a row's attention is fixed by its head's output up to a rounding to bfloat16 \
(0.4 % of its length), and {certain_mass:≥.1%} by the exact output: in all weights with such an output, at least this \
much lies on the same keys (certain mass, the mean of {looked:map}, by {certain_rows:row}).
Certain: not looked at in {unlooked:map}. Choose rows with --certain-rows 4 (in Python: certain_rows=4).
Influential: without head {head} of {kind} layer {layer} the outcome ({outcome}) changes by {effect:.3g} ({unit}), the \
most, and by at least {enough:.0%} of that without each of {near} of {heads:head} ({by}, mean over {effect_texts:text}).
Influential: not looked at in {unmoved:head}; by default only texts of at most 2,048 tokens are. Choose --effects \
removal (in Python: effects="removal").
No effect: {null_share:.1%} of the squared weight of a map (mean of {open_maps:attention map}) lies in directions that \
have no effect on the output. That does not make these weights free: they also stay positive and sum to 1.
Few keys: the exact output of a head fixes each of its weights. {few}.
"""
_TILES = """\
{maps:,} | attention maps audited (one for each text, layer and head)
{certain_mass_bfloat16:≥.1%} | of a row's attention is certain: fixed by its head's output up to bfloat16's rounding
{sink_mass:.1%} → {sink_norm_share:.1%} | of attention on one structural token a map → its share of the norms
{null_share:.1%} | of squared weight in directions without effect (null share)
{pearson:.2f} | mean correlation of raw and effective attention
"""
_SCOPE = """\
Only attention is audited. Layers of the model without it: {without}.
Only attention is audited. Layers where positions also mix by other means (a state space, a convolution, pooling): \
{mixing}.
Of each map only these rows are measured: {queries}.
{normed}
The model gates its heads: each row has a factor of its own before the output projection. The output of a head is here \
what it mixes, {gated}; lengths of vectors are those {gated}, too.
In every layer ({full} in all) the output projections of all heads together have full rank, so that the layer's output \
fixes the output of each head.
In {trading} of {layers:layer} heads can trade: their output projections together have rank {least_rank:,} to \
{most_rank:,}, of {stacked_size:,} at most, so that other weights of several heads at once can give the same layer \
output. What is called certain here is fixed by each head's own output; the layer's output, and the model's answer, \
fix less.
"""
_GROUPS = """\
Certain: in every distribution over the same keys with the same output, up to a rounding to bfloat16, each weight \
keeps its proven least value; their sum is the certain mass, and no alternative lies farther away than 1 − certain \
mass (total variation). A head is mostly certain from a mean of 0.5 on. It is influential when the model's prediction \
changes without it by at least a tenth (its final states by 0.3) of the change without the head that matters most. \
Neither follows from the other.
Undecided: {undecided:head}, within two standard errors of a border over the rows and texts that were looked at, or of \
one row alone, which has no error. More of both (--certain-rows, --limit) tell.
The standard error of the mean certain mass over {error_units} is {error:.1%}.
In {short} of {looked:map} looked at, no other weights give exactly this output: rows see few keys for the size of the \
head. See what is left of a row when its output may change by 1 % (identilens certify --tolerance 1%; in Python \
tolerance=0.01).
"""
_MAPS = """\
Every map that was kept; of long texts, means over blocks of tokens. Click a row of a whole map to see how far each of \
its weights could move without changing the output, and how much each key contributes. Raw attention is the sum of its \
effective and its null part, cell by cell (Brunner et al. 2020, Fig. 6); the null part has no effect on the output.
The audit saved {kept:map}. To keep this file small, it shows the first {shown:,}. \
Audit.load(folder).matrices has all.
"""
_HEADS = """\
Means over texts. Null share is the part of a map's squared weight in directions without effect on the head's output; \
it does not say that weights are free. Correlation compares a map with its effective attention (1: the same pattern).
"""
_LENGTH = """\
How much the raw map looks like the effective one, by the number of keys (Brunner et al. 2020, Fig. 1a): a point a \
map. The rank is at most d_v, the size of a head's values, so with more keys than that every map has a null space, and \
it grows with length.
"""
_TYPES = """\
How much attention goes to each type of token: the model's special tokens, full stops and commas (“. ,”) and all \
others; sums over the tokens of a type, averaged over query tokens, texts and the heads of a layer (Brunner et al. \
2020, Fig. 1b and 1c). Effective attention can be negative.
"""
_PUT = "The same by type of the query token (Brunner et al. 2020, Fig. 5)."

_MEASURES = (
    "certain_mass_bfloat16",
    "certain_mass",
    "sink_mass",
    "sink_norm_share",
    "null_share",
    "simplex_null_share",
    "pearson",
    "rank",
    "nullity",
    "reconstruction_error",
)

_MEANS = (*_MEASURES[:5], "pearson")


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
            **integers("layer", "head"),
            **dict.fromkeys(("query_type", "key_type"), pl.String),
            "queries": pl.Int64,
            **decimals("raw", "effective"),
        },
    }

    words: ClassVar = {
        "certain_mass": "Certain mass",
        "certain_mass_bfloat16": "Certain mass up to bfloat16's rounding",
        "relative_effect": "Effect / largest effect",
        "relative_output": "Output: length of the head's output, over the mean of its layer's heads",
        "null_share": "Null share",
        "pearson": "Correlation of raw and effective attention",
        "n_key": "Length (number of keys)",
        "key_type": "Token type",
        "query_type": "Query token",
        "value": "Mean attention",
        "sink_mass": "On the sink: attention on the structural token that receives most of a map's attention",
        "sink_norm_share": "Sink's norm: what this token adds to the output, as a share of all lengths",
    }
    views: ClassVar = {
        "layers": View(title="Means by layer", text=_SCOPE, table="layers", listed=True),
        "certain_and_influential": View(
            scatter,
            ("certain_mass_bfloat16", "relative_effect", "group"),
            title="Every head: how much is certain, and its effect",
            text=_GROUPS,
            table="grouped",
            also=("layer", "head", "relative_output", "sink_token", "sink_mass"),
            look={"x_domain": (0, 1), "y_domain": (0, 1.05)},
        ),
        "groups": View(title="Groups of heads", table="groups", listed=True),
        "maps": View(title="The maps", text=_MAPS, maps="report_maps"),
        "measures": View(
            heat,
            ("head", "layer", ("certain_mass_bfloat16", "null_share", "pearson")),
            title="Layer by layer, head by head",
            text=_HEADS,
            table="by_head",
            look={"domain": (0, 1)},
        ),
        "correlation_by_length": View(
            scatter,
            ("n_key", "pearson", "layer"),
            title="Correlation of raw and effective attention by length",
            text=_LENGTH,
            also=("text", "head"),
        ),
        "token_types": View(
            lines,
            ("layer", ("raw", "effective"), "key_type"),
            title="What token types receive",
            text=_TYPES,
            table="received",
            by=("kind", "layer", "key_type"),
        ),
        "attention_to_type": View(
            lines,
            ("layer", ("raw", "effective"), "query_type"),
            title="Attention put on one type",
            text=_PUT,
            table="token_types",
            by=("kind", "layer", "query_type", "key_type"),
            choices=("key_type",),
        ),
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
        change without the head that matters most; undecided within two standard errors of a border. It is missing
        where rows or effects were not looked at (certain_rows, effects).
        """
        return heads_table(self.table, self.rows, self.effects)

    def view(self, text: int, layer: int, head: int, kind: Kind | None = None) -> MapView:
        """Return all maps of a text that were kept, open at one head: a notebook shows them, `to_html` writes them.

        Raises:
            InputError: For a map that was not kept.
        """
        kept = kept_maps(self.table, self.matrices).filter(text=text)
        if kind is not None:
            kept = kept.filter(kind=kind)
        index = kept.with_row_index().filter(layer=layer, head=head)["index"]
        if index.is_empty():
            raise InputError(
                f"the map of text {text}, layer {layer}, head {head} was not saved. Save maps with examples= "
                "or matrices=True."
            )
        maps = page_maps(kept, self.matrices, self.tokens)
        maps[index[0]] = replace(maps[index[0]], interest=inf)
        return MapView(maps)

    def notebook_maps(self) -> Sequence[TokenMap]:
        """Return the maps of the first text that was kept."""
        kept = kept_maps(self.table, self.matrices)
        return page_maps(
            kept.filter(pl.col("text") == pl.col("text").first()), self.matrices, self.tokens
        )

    def layers(self) -> pl.DataFrame:
        """Return the means by layer that the finding rests on; `by_layer` has all of them."""
        return self.by_layer().select("kind", "layer", *_MEANS, "maps")

    def grouped(self) -> pl.DataFrame:
        """Return the heads that have a group."""
        return self.heads().drop_nulls("group")

    def groups(self) -> pl.DataFrame:
        """Return how many heads each group has, with the means of what tells the groups apart."""
        return groups_table(self.heads()).filter(len(self.grouped()) > 0)

    def summary(self) -> Finding:
        """Return the finding: how much is certain, how much has influence, how much has no effect."""
        table, heads = self.table, self.heads()
        looked = table.filter(pl.col("certain_rows") > 0)
        error, units = certain_error(self.rows, table)
        means = table.select(pl.col(_MEANS).mean()).row(0, named=True)
        kept = kept_maps(table, self.matrices)
        shown = len(fitting_maps(kept))
        few = not table["simplex_nullity"].max()
        return Finding.of(
            _FINDING,
            _TILES,
            maps=len(table),
            open_maps=None if few else len(table),
            few=ONLY_FEW if few else None,
            **means,
            certain_rows=int(table["certain_rows"].sum()),
            unlooked=None if len(looked) else len(table),
            looked=len(looked),
            short=len(looked.filter(simplex_nullity=0)) or None,
            error=error,
            error_units=units,
            undecided=len(heads.filter(group=GROUPS[-1])) or None,
            kept=len(kept) if shown < len(kept) else None,
            shown=shown,
            **effect_numbers(heads, self.effects),
            **({} if self.provenance["model"].get("normed_heads") else stacked_numbers(table)),
            **self._scope(),
        )

    def _scope(self) -> dict[str, str | None]:
        """Return what of the model is audited."""
        model = self.provenance["model"]
        said = scope(self.provenance)
        return {
            "without": ", ".join(model.get("layers_without_attention") or ()) or None,
            "mixing": ", ".join(model.get("layers_with_other_mixers") or ()) or None,
            **said,
            "gated": "before the gate" if model.get("gated_heads") and not said["normed"] else None,
        }

    def report_maps(self) -> list[TokenMap]:
        """Return the maps that a report shows: those that fit, and means over blocks of long texts."""
        shown = fitting_maps(kept_maps(self.table, self.matrices))
        long = kept_maps(self.table, self.matrices, "means")
        return page_maps(pl.concat([shown, long]), self.matrices, self.tokens)

    def _mean_by(self, *keys: str) -> pl.DataFrame:
        return (
            self.table.group_by(keys)
            .agg(pl.col(_MEASURES).mean(), pl.len().alias("maps"))
            .sort(keys)
        )
