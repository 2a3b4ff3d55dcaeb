"""The result of a mixing analysis: how much of each input token is in each hidden token, at every layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import polars as pl
from jaxtyping import Float

from identilens.charts.kit import Charts
from identilens.charts.page import Section
from identilens.charts.viewer import TokenMap
from identilens.errors import InputError
from identilens.measures.mixing import track_token
from identilens.measures.mixing.tracking import find_token
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Tables, counted, percent, table_of
from identilens.studies.mixing import views
from identilens.studies.mixing.series import Series
from identilens.studies.mixing.single import (
    MOST_INPUTS,
    Measure,
    array_of,
    drawn_tokens,
    names_of,
    token_maps,
    token_rows,
)
from identilens.studies.mixing.tagging import TAG_COLUMNS

KIND = pl.Enum(["encoder", "decoder", "cross"])


@dataclass(frozen=True, kw_only=True)
class Mixing(Result):
    """Contributions of input tokens to hidden tokens.

    Layers are indices into the model's hidden states: layer l is what the l-th layer gives, from 1. The table has one
    row for each text, kind, layer, hidden token and input token, in this order; ``token_names`` says what stands at
    each hidden and each input position, ``tags`` its part of speech, ``tracked`` the token to show, if any.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> text = "The ferry left the harbour before dawn, and nobody could say who had paid."
        >>> mixing = idl.mixing(lens, text, sketch_probes=4, layers=(1, 6), rollouts=False)
        >>> mixing.by_layer()
        shape: (2, 5)
        ┌─────────┬───────┬────────────┬─────────────┬────────┐
        │ kind    ┆ layer ┆ median_own ┆ not_largest ┆ tokens │
        │ ---     ┆ ---   ┆ ---        ┆ ---         ┆ ---    │
        │ enum    ┆ i16   ┆ f64        ┆ f64         ┆ u32    │
        ╞═════════╪═══════╪════════════╪═════════════╪════════╡
        │ encoder ┆ 1     ┆ 0.451098   ┆ 0.0         ┆ 18     │
        │ encoder ┆ 6     ┆ 0.149852   ┆ 0.5         ┆ 18     │
        └─────────┴───────┴────────────┴─────────────┴────────┘
    """

    analysis: ClassVar = "mixing"
    title: ClassVar = "Mixing"
    schema: ClassVar = {
        "table": {
            "text": pl.Int32,
            "kind": KIND,
            "layer": pl.Int16,
            "hidden": pl.Int32,
            "input": pl.Int32,
            "contribution": pl.Float64,
            "standard_error": pl.Float32,
            "margin": pl.Float32,
            "norm": pl.Float32,
            "raw_rollout": pl.Float32,
            "effective_rollout": pl.Float32,
        },
        "token_names": {
            "text": pl.Int32,
            "kind": KIND,
            "side": pl.Enum(["hidden", "input"]),
            "position": pl.Int32,
            "token": pl.String,
        },
        "tags": TAG_COLUMNS,
        "tracked": {"text": pl.Int32, "position": pl.Int32},
    }

    token_names: pl.DataFrame
    tags: pl.DataFrame
    tracked: pl.DataFrame

    @cached_property
    def series(self) -> Series:
        """Aggregates over all texts, worked out when first asked for."""
        return Series(self.table, self.token_names, self.tags)

    @property
    def kinds(self) -> list[str]:
        """Kinds of hidden states in the result."""
        return self.series.kinds

    def array(
        self, text: int, kind: str | None = None, measure: Measure = "contribution"
    ) -> Float[np.ndarray, "layer hidden input"]:
        """Return one text's contributions, or another column, as an array [layer, hidden token j, input token i].

        Texts count from 0. Encoder–decoders have three kinds, of which one must be named. Of chosen positions
        (``queries``), j counts these.

        Raises:
            InputError: If the result contains no such text or kind.
        """
        rows = self.table.filter(text=text, kind=self._kind(kind))
        if not len(rows):
            raise InputError(
                f"the result has no text {text}; it has the texts 0 to {self.table['text'].max()}. Texts count from 0."
            )
        return array_of(rows, measure)

    def names(
        self, text: int, kind: str | None = None, side: Literal["hidden", "input"] = "hidden"
    ) -> list[str]:
        """Return the tokens at one text's hidden or input positions."""
        return names_of(self.token_names, text, self._kind(kind), side)

    def own(self) -> pl.DataFrame:
        """Return what each token contributes to its own hidden state; see `own_contributions`."""
        return self.series.own_rows

    def by_layer(self) -> pl.DataFrame:
        """Return the median own contribution (Brunner Fig. 3a) and the share not their own largest (3b) a layer."""
        return self.series.own.select(
            "kind", "layer", pl.col("median").alias("median_own"), "not_largest", "tokens"
        )

    def tracking(self, token: str) -> "Mixing":
        """Return the same result with a token to show through the layers: the first one of that name.

        Raises:
            InputError: If no text contains it, naming some that occur; marks of a word's start or middle may be left
                out.
        """
        hidden = self.token_names.filter(kind=self.kinds[0], side="hidden").sort("text", "position")
        texts = hidden.group_by("text", maintain_order=True).agg("token")
        text, position = find_token(texts["token"].to_list(), token)
        row = {"text": texts["text"][text], "position": position}
        return replace(self, tracked=table_of(self.schema["tracked"], [row]))

    def summary(self) -> Finding:
        """Return how much of a token is still itself, where context comes from, what attention alone would say."""
        settings = self.provenance["settings"]
        told = finding(self.series, exact=settings["method"] == "exact")
        asked = settings.get("queries")
        if not asked:
            return told
        scope = (
            f"Of each text only these hidden states are looked at: {', '.join(map(str, asked))}."
        )
        return replace(told, text=f"{scope}\n{told.text}")

    def overview(self) -> Tables:
        """Return the medians by layer, and what the tracked token takes from each token."""
        frames = {"Own contribution by layer": self.by_layer()}
        for text, position in self.tracked.iter_rows():
            name = self.names(text, self.kinds[0])[position]
            title = f"What {name!r} (text {text}, position {position}) takes from each token, per cent, by layer"
            rows = track_token(self.table, self.token_names, position, text)
            percent = rows.with_columns((pl.col("contribution") * 100).round(1))
            frames[title] = percent.pivot(
                "layer", index=["position", "token"], values="contribution"
            )
        return frames

    def charts(self) -> Charts:
        """Return the figures of Brunner et al. 2020, section 5, and rollouts beside contributions.

        ``own_contribution`` and ``not_largest`` (Fig. 3), ``neighbours`` and ``relative_positions`` (Fig. 4),
        ``class_token`` and ``class_token_separator`` (Fig. 18), ``tracked_token`` (Fig. 19–25), ``part_of_speech``
        (Fig. 26–37), ``own_share`` and ``rollout_correlation``.
        """
        series = self.series
        text, positions = drawn_tokens(series, self.tracked)
        charts = {
            "own_contribution": views.own_contribution(series.own),
            "not_largest": views.not_largest(series.own),
        }
        if len(series.positions):
            charts["neighbours"] = views.neighbours(series.neighbours)
            charts["relative_positions"] = views.relative_positions(series.positions)
        for name, context in zip(
            ("class_token", "class_token_separator"), series.class_context, strict=False
        ):
            charts[name] = views.class_token(context)
        charts["tracked_token"] = views.tracked_token(token_rows(series, text, positions), text)
        if len(series.speech):
            charts["part_of_speech"] = views.part_of_speech(series.speech)
        if len(series.correlation):
            charts["own_share"] = views.own_share(series.own_medians)
            charts["rollout_correlation"] = views.rollout_correlation(series.correlation)
        return charts

    def sections(self) -> list[Section]:
        """Return the report: charts with what they mean, and single tokens of some texts with all their numbers."""
        text, positions = drawn_tokens(self.series, self.tracked)
        # Beside the class token stands the word that kept least of itself.
        maps = token_maps(self.series, (text, positions[min(1, len(positions) - 1)]))
        return sections(self.series, list(self.charts()), maps, self.provenance["texts"]["count"])

    def _kind(self, kind: str | None) -> str:
        if kind is None and len(self.kinds) == 1:
            return self.kinds[0]
        if kind not in self.kinds:
            raise InputError(
                f"expected one of the kinds {', '.join(self.kinds)}; got {kind!r}. Pass kind=..."
            )
        return kind


_AGREES = 0.8  # Correlation from which two pictures are called much the same.
_ENDS = {"first": 0, "last": -1}
_EXACT = "All norms are exact."
_ESTIMATED = "Contributions are estimates; the typical standard error of one is {} of it."


def finding(series: Series, *, exact: bool) -> Finding:
    """Return how much of a token is still itself, where context comes from, and what attention alone would say."""
    share = pl.col("standard_error") / pl.col("contribution")
    typical = series.table.filter(pl.col("contribution") > 0).select(share.median()).item()
    sentences, numbers = [], {"typical_error": typical}
    for kind, rows in _by_kind(series.own, series):
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        least, most = (f"{percent(row['median'])} at layer {row['layer']}" for row in (first, last))
        sentences.append(
            f"Of each {kind} hidden state, the token at its own position makes up "
            f"{' and '.join(dict.fromkeys([least, most]))} ({'medians over ' * (first['tokens'] > 1)}"
            f"{counted(first['tokens'], 'token')}; layers count from 1); at layer {last['layer']}, another token makes "
            f"up more in {percent(last['not_largest'])} of the states."
        )
        numbers |= {f"{kind}_own_{place}": rows["median"][at] for place, at in _ENDS.items()}
        numbers[f"{kind}_not_largest_last"] = last["not_largest"]
    sentences.append(_EXACT if exact else _ESTIMATED.format(percent(typical)))
    beside = series.positions.filter(pl.col("offset").abs() == 1)
    # The share of context that comes from the tokens on both sides, by layer.
    sums = beside.group_by("kind", "layer").agg(pl.col("share").sum()).sort("layer")
    for kind, rows in _by_kind(sums, series):
        if rows.is_empty():
            continue
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        if len(rows) > 1:
            sentences.append(
                f"Of the context in {'an' if kind == 'encoder' else 'a'} {kind} hidden state, "
                f"{100 * first['share']:.0f} % comes from the tokens next to it at layer {first['layer']} and "
                f"{100 * last['share']:.0f} % at layer {last['layer']}."
            )
        numbers |= {f"{kind}_next_to_it_{place}": rows["share"][at] for place, at in _ENDS.items()}
    for kind, of_kind in _by_kind(series.correlation, series):
        rows = _agreement(of_kind)
        if rows.is_empty():
            continue
        at = [
            f"{row['raw']:.2f} (raw) and {row['effective']:.2f} (effective) at layer {row['layer']}"
            for row in rows[[0, -1]].iter_rows(named=True)
        ]
        last = rows.row(-1, named=True)
        tells = "tells" if min(last["raw"], last["effective"]) >= _AGREES else "does not tell"
        sentences.append(
            f"At the last layer attention alone {tells} well which "
            f"context is mixed into {kind} hidden states: without the token itself, attention rollout correlates with "
            f"contributions (1: the same answer) at {' and '.join(dict.fromkeys(at))}."
        )
        numbers |= {f"{kind}_{name}_rollout_last": last[name] for name in ("raw", "effective")}
    return Finding("\n".join(sentences), numbers, _headline(series))


def _by_kind(frame: pl.DataFrame, series: Series) -> list[tuple[str, pl.DataFrame]]:
    return [(kind, frame.filter(kind=kind)) for kind in series.own_kinds]


def _agreement(correlation: pl.DataFrame) -> pl.DataFrame:
    """Return how both rollouts correlate with contributions to context: layer, raw, effective."""
    known = correlation.filter((pl.col("pairs") == "context") & pl.col("pearson").is_not_null())
    wide = known.pivot("rollout", index="layer", values="pearson").drop_nulls().sort("layer")
    return wide if {"raw", "effective"} <= set(wide.columns) else wide.clear()


def _headline(series: Series) -> list[tuple[str, str]]:
    rows = series.own.filter(kind=series.own_kinds[0])
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    end = last["layer"]
    found = [
        (
            f"{100 * first['median']:.0f} %",
            f"of a hidden state is its own token at layer {first['layer']} (median)",
        ),
        (f"{100 * last['median']:.0f} %", f"of it at layer {end} (median)"),
        (
            f"{100 * last['not_largest']:.0f} %",
            f"of tokens are not their own largest contributor at layer {end}",
        ),
    ]
    return [found[0], found[2]] if first["layer"] == end else found


def sections(
    series: Series, charts: Sequence[str], maps: Sequence[TokenMap], texts: int
) -> list[Section]:
    """Return the parts of the report."""
    groups = (
        ("part_of_speech",),
        ("class_token", "class_token_separator"),
        ("own_share", "rollout_correlation"),
    )
    speech, classes, rollout = ([name for name in names if name in charts] for names in groups)
    context = [name for name in ("neighbours", "relative_positions") if name in charts]
    boxes = series.own.select(
        "kind", "layer", "q1", "median", "q3", "mean", "not_largest", "tokens"
    )
    raw, effective = (
        series.own_medians.filter(pl.col("measure") == f"{name} rollout")["median"]
        for name in ("raw", "effective")
    )
    parts = [
        Section(
            "own",
            "How much of a token is still itself",
            _OWN,
            ["own_contribution", "not_largest"],
            boxes,
        ),
        Section("neighbours", "Where context comes from", _CONTEXT, context),
        Section("class-token", "The class token", _CLASS, classes),
        Section(
            "token",
            "One token through the layers",
            [*_TOKEN, *([_MAPS] if maps else [])],
            ["tracked_token"],
            maps=maps,
            note=_held(maps, texts),
        ),
        Section("speech", "Parts of speech", _SPEECH, speech),
        Section(
            "rollout",
            "What attention alone says",
            _ROLLOUT,
            rollout,
            series.correlation,
            note=_EQUAL if len(raw) and ((raw - effective).abs() < 1e-3).all() else "",
        ),
    ]
    # A part without charts has nothing to show.
    drawn = [part for part in parts if part.charts]
    return [*drawn, Section("reading", "How to read this report", _READING)]


def _held(maps: Sequence[TokenMap], texts: int) -> str:
    shown = len({one.choices["text"] for one in maps})
    held = f"This page has every number of {shown} of {counted(texts, 'text')}, as many as fit."
    return f"{held} {_ANY_TEXT}"


_ANY_TEXT = "In Python, track_token of identilens.measures.mixing gives any text's numbers, with standard errors."
_EQUAL = "The own shares of raw and of effective rollout hardly differ here."
_OWN = (
    "Contribution is the share of an input token in a hidden state: how strongly the state reacts to small changes of "
    "that token's input vector, over all tokens 1 in sum (Brunner et al. 2020, Eq. 11). Here only the token at the "
    "state's own position (Fig. 3).",
    "Boxes hold the middle half of all tokens, the line in them is the median. Whiskers reach to the furthest token "
    "within 1.5 times the box's height; tokens beyond are not drawn. Where another input token contributes more than "
    "the token itself, reading the hidden state as “this token in context” is least safe.",
)
_CONTEXT = (
    "Everything that is not a token's own contribution is context. Is it near or far, and does that change with depth "
    "(Fig. 4)?",
    "By distance: the mean contribution of left and right neighbours, scaled so that a line sums to 1 over layers. A "
    "line that rises says that this distance matters more in late layers, not that it contributes more than others.",
    "By relative position: the total contribution, over all tokens, of what stands so many positions to the left "
    "(negative) or right, as a share of all context of the layer. Far positions exist in long texts only.",
)
_CLASS = (
    "The first token stands for the whole text and for no word. What its hidden state takes from each position, over "
    "all texts, as a share of its context (Brunner et al. 2020, Fig. 18).",
)
_TOKEN = (
    "What one hidden state takes from input tokens, layer by layer (Brunner et al. 2020, Fig. 19–25). The chart has "
    f"the tokens that contribute most, {MOST_INPUTS} at most, in the order of the text.",
)
_MAPS = (
    "The maps below have every input token: rows are layers. Rollouts stand beside contributions."
)
_SPEECH = (
    "Own contribution by part of speech (Brunner et al. 2020, Fig. 26–37), in the order of the medians at the last "
    "layer, the same for every layer. A sub-word takes the tag of its word; special tokens are their own tag. In "
    "brackets: how many tokens.",
)
_ROLLOUT = (
    "Attention rollout multiplies attention maps through the layers (Abnar and Zuidema 2020) and is often read as "
    "“what has been mixed”. It sees attention weights only: neither values, nor norms, nor feed-forward layers. Raw "
    "rollout takes weights as they are, effective rollout only the part that reaches the heads' outputs. If attention "
    "alone explained the mixing, the lines of the first chart would coincide, and those of the second would lie at 1.",
    "Correlations are taken within each text and averaged over texts. The own token is largest in all three, so with "
    "it any two agree; without it the figure says whether attention tells which context is mixed in.",
)
_READING = (
    "Contribution: c_ij = ‖∂e_j/∂x_i‖ / Σ_k ‖∂e_j/∂x_k‖, with e_j the hidden state at position j, x_i the input vector "
    "at position i and Frobenius norms (Brunner et al. 2020, Eq. 11). x is what enters the first layer, unless the "
    "setting “wrt” says otherwise.",
    "Layers: layer l is what the l-th layer gives, from 1.",
    "Kinds: encoders have “encoder”, decoder-only models “decoder” states. Encoder–decoders also have “cross”: decoder "
    "states by encoder input. It has no own token and no neighbours, and so appears only in the maps of single tokens. "
    "In decoders later tokens contribute exactly 0.",
    "Exact and sketch: the setting “method” says whether norms are exact or estimated from random probes, as many a "
    "token as “sketch_probes” says. Each estimate has a standard error in the table. Tokens whose own and another's "
    "contribution are nearly equal may fall on either side of “largest” in a sketch.",
    "What this does not say: a derivative describes small changes, and replacing a word is not small. A large "
    "contribution is sensitivity, not use. Shares get smaller with longer texts, so compare layers, or tokens within a "
    "text, not bare shares of texts of different length.",
    "Sources: G. Brunner, Y. Liu, D. Pascual, O. Richter, M. Ciaramita, R. Wattenhofer. On Identifiability in "
    "Transformers. ICLR 2020. S. Abnar, W. Zuidema. Quantifying Attention Flow in Transformers. ACL 2020 (attention "
    "rollout). How to cite this run stands at the end of the page.",
)
