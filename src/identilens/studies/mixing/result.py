"""The result of a mixing analysis: how much of each input token is in each hidden token, at every layer."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import polars as pl
from jaxtyping import Float

from identilens.charts.kit import AnyChart
from identilens.charts.page import Section
from identilens.errors import InputError
from identilens.measures.mixing import track_token
from identilens.measures.mixing.tracking import find_token
from identilens.runs.result import Finding, Result
from identilens.runs.tables import table_of
from identilens.studies.mixing import views
from identilens.studies.mixing.finding import finding
from identilens.studies.mixing.sections import sections
from identilens.studies.mixing.series import Series
from identilens.studies.mixing.single import (
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

        Texts count from 0. Encoder–decoders have three kinds, of which one must be named.

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

    def with_tags(self, tags: pl.DataFrame) -> "Mixing":
        """Return the same result with parts of speech of its tokens, from `tag_tokens`."""
        return replace(self, tags=tags)

    def summary(self) -> Finding:
        """Return how much of a token is still itself, where context comes from, what attention alone would say."""
        return finding(self.series)

    def overview(self) -> dict[str, pl.DataFrame]:
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

    def charts(self) -> dict[str, AnyChart]:
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
