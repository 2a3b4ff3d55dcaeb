"""The result of removing heads and keys: what changes in the model's answer."""

from dataclasses import dataclass
from math import exp
from typing import ClassVar

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose_present, scatter
from identilens.charts.page import Section
from identilens.models.token_names import unmarked
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, Row, counted, some_of
from identilens.studies.head_views import choose_kind
from identilens.studies.outcomes import (
    INFLUENTIAL,
    ONLY_CHOSEN,
    RELATIVE_EFFECT,
    UNITS,
    Answered,
    changed,
    head_in_words,
    largest_effect,
)

_HEAD = ["kind", "layer", "head"]
_MOST = 10
"""Heads that are drawn by token of an answer."""


@dataclass(frozen=True, kw_only=True)
class Influence(Result):
    """What happens to the model's answer when a head, or one key of one row, is removed.

    Attributes:
        table: One row for each text and head. ``effect``: the change of the outcome when the head writes nothing;
            ``effect_of_mean``: when it writes the mean of its output over the text; ``estimate``: of ``effect``, to
            first order. Nats (prediction, the mean over its positions) or relative change (states). ``log_change``: of
            the log probability of a given answer, in nats; below 0 where the answer becomes less likely.
        answer_tokens: Of a given answer one row for each text, head and token of the answer: its
            ``log_probability`` in the model, its part of ``log_change``, and the row (``query``) that predicts it.
        hidden_keys: One row for each key with a weight in the rows that were named; ``effect`` and ``log_change`` when
            the key is hidden.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.influence(lens, "The cat sat on the mat.", layers=2)
        >>> found.heads().columns[:5]
        ['kind', 'layer', 'head', 'effect', 'effect_of_mean']
    """

    analysis: ClassVar = "influence"
    title: ClassVar = "What happens to the model without a head"
    schema: ClassVar = {
        "table": {
            **HEAD,
            "effect": pl.Float64,
            "effect_of_mean": pl.Float64,
            "estimate": pl.Float64,
            "log_change": pl.Float64,
        },
        "answer_tokens": {
            **HEAD,
            "query": pl.Int64,
            "query_token": pl.String,
            "token": pl.String,
            "log_probability": pl.Float64,
            "log_change": pl.Float64,
        },
        "hidden_keys": {
            **HEAD,
            "query": pl.Int64,
            "query_token": pl.String,
            "key": pl.Int64,
            "key_token": pl.String,
            "weight": pl.Float64,
            "norm_share": pl.Float64,
            "effect": pl.Float64,
            "log_change": pl.Float64,
        },
    }

    answer_tokens: pl.DataFrame
    hidden_keys: pl.DataFrame

    def heads(self) -> pl.DataFrame:
        """Return the means of each head over texts, and ``relative_effect``, its effect over that of the largest."""
        return (
            self.table.group_by(_HEAD)
            .agg(pl.exclude("text", *["log_change"] * self._undecided).mean())
            .sort(_HEAD)
            .with_columns(RELATIVE_EFFECT)
        )

    @property
    def _undecided(self) -> bool:
        """Whether no answer was given."""
        return not len(self.answer_tokens)

    def _decided(self, texts: int) -> tuple[str, tuple[str, str]]:
        """Return which head a given answer needs most, and the headline of that."""
        heads = self.heads().sort("log_change", maintain_order=True)
        least, most = heads.row(0, named=True), heads.row(-1, named=True)
        mean = f", mean over {texts} texts" * (texts > 1)
        number = f"{least['log_change']:+.3g}"
        others = (
            f" (the lowest), without {head_in_words(most)} by {most['log_change']:+.3g} (the highest). It falls "
            f"without {some_of(len(heads.filter(pl.col('log_change') < 0)), len(heads), 'head')}: these speak for the "
            "answer, if only a little."
        )
        known = self.answer_tokens["log_probability"].sum() / len(self.table)
        words = (
            f"The answer {self.provenance['settings']['decision']!r} has probability {exp(known):.3g} (logarithm "
            f"{known:.3g}{mean}). Without {head_in_words(least)} its log probability changes by {number} nats{mean}"
            f"{others if len(heads) > 1 else '.'}"
            f"{self._at_token(least) * (texts == 1)} What follows is another measure, never negative: how far the "
            "whole predictions at its tokens move (KL divergence), whichever token gains."
        )
        return words, (
            number,
            f"nats of the answer's log probability without {head_in_words(least)}",
        )

    def _at_token(self, head: Row) -> str:
        """Return at which token of the answer a head of the one text changes most, and how to look at that row."""
        own = self.answer_tokens.filter(pl.col(name) == head[name] for name in _HEAD)
        most = own.sort(pl.col("log_change").abs()).row(-1, named=True)
        hint = f": --layers {head['layer']} --heads {head['head']} --queries {most['query']} hides each key of that row"
        return (
            f" Of {head['log_change']:+.3g} nats, {most['log_change']:+.3g} are at {unmarked(most['token'])!r}, which "
            f"the row of {unmarked(most['query_token'])!r} ({most['query']}) predicts"
            f"{hint * self.hidden_keys.is_empty()}."
        )

    def _keys_by_effect(self) -> pl.DataFrame:
        """Return the hidden keys, those that matter most first: without which a given answer is least likely."""
        keys = self.hidden_keys.drop_nulls("effect")
        if self._undecided:
            keys = keys.drop("log_change")
            return keys.sort("effect", descending=True, maintain_order=True)
        return keys.sort("log_change", maintain_order=True)

    @property
    def _some_heads(self) -> bool:
        settings = self.provenance["settings"]
        return any(settings.get(name) is not None for name in ("layers", "heads"))

    def summary(self) -> Finding:
        """Return the finding: the head of the largest effect, how many come near it, how well estimates order heads."""
        heads, texts = self.heads(), self.table["text"].n_unique()
        largest, without = largest_effect(heads, self._outcome)
        own = self.table.filter(pl.all_horizontal(pl.col(name) == largest[name] for name in _HEAD))
        error = f" (standard error {own['effect'].std() / texts**0.5:.2g})" if texts > 1 else ""
        enough = INFLUENTIAL[self._outcome]
        many = len(heads.filter(pl.col("relative_effect") >= enough))
        ranks = {name: self._agreement(name) for name in ("effect_of_mean", "estimate")}
        asked = self.provenance["settings"].get("answer")
        named = f" after these tokens (--answer {','.join(map(str, asked))})" if asked else ""
        of = f"the predictions{named} of " * (self._outcome == "prediction")
        lines = [
            f"Without {without}; {'mean over' if of or texts > 1 else 'on'} {of}{counted(texts, 'text')}{error}.",
        ]
        if len(heads) > 1:
            lines.append(
                f"Influential: {some_of(many, len(heads), 'head')}, with at least {100 * enough:.0f} % of this effect "
                f"when removed alone.{ONLY_CHOSEN if self._some_heads else ''}"
            )
        if ranks["effect_of_mean"] is not None:
            lines.append(
                "When a head writes its mean over the text instead of nothing, the effects have a rank correlation "
                f"of {ranks['effect_of_mean']:.2f} with those of removal. Say which of the two you quote: removal "
                "tests all that a head writes, the mean only how that varies from token to token."
            )
        if ranks["estimate"] is not None:
            lines.append(
                "Estimates to first order, which need backward passes only, have a rank correlation of "
                f"{ranks['estimate']:.2f} with the effects of removal."
            )
        for key in self._keys_by_effect().head(1).iter_rows(named=True):
            change = changed(self._outcome, key["effect"])
            if not self._undecided:
                change = f"log probability of the answer changes by {key['log_change']:+.3g} nats"
            lines.append(
                f"Of {len(self.hidden_keys)} keys of single rows, {unmarked(key['key_token'])!r} ({key['key']}) in the "
                f"row of {unmarked(key['query_token'])!r} ({key['query']}) of {head_in_words(key)} "
                f"matters most: when it is hidden, the {change}. The other keys "
                "then take over its weight, so that this can be more than without the head."
            )
        numbers = {"heads": len(heads), "influential": many, "largest": largest["effect"], **ranks}
        first = []
        if not self._undecided:
            words, *first = self._decided(texts)
            lines.insert(0, words)
        headline = (
            (
                f"{largest['effect']:.3g}",
                f"{UNITS[self._outcome]} without {head_in_words(largest)}",
            ),
            (f"{many} of {len(heads)}", f"heads have at least {100 * enough:.0f} % of that effect"),
        )
        return Finding("\n".join(lines), numbers, [*first, *headline[: len(heads)]])

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the heads with the largest effects."""
        if not self._undecided:
            title = "Heads that the answer needs most, by the change of its log probability in nats"
            return {title: self.heads().sort("log_change").head(10)}
        title = f"Largest effects, in {UNITS[self._outcome]}"
        return {title: self.heads().sort("effect", descending=True).head(10)}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``effects`` by layer and head; ``tokens``, ``estimates`` and ``keys`` where there are some."""
        heads, unit = self.heads(), UNITS[self._outcome]
        charts = {"effects": self._by_head()}
        if self.answer_tokens["query"].n_unique() > 1:
            charts["tokens"] = self._by_token()
        if known := self._agreement("estimate"):
            charts["estimates"] = scatter(
                heads.select(*_HEAD, "estimate", "effect"),
                "estimate",
                "effect",
                "kind",
                title=f"Estimate against removal (rank correlation {known:.2f})",
                x_title=f"Estimate, to first order ({unit})",
                y_title=f"Effect of removal ({unit})",
                also=["layer", "head"],
            )
        if len(shown := self._keys_by_effect()):
            charts["keys"] = scatter(
                shown.select(*_HEAD, "query_token", "key_token", "weight", "norm_share", "effect"),
                "weight",
                "effect",
                "kind",
                title="Weight of a key against the effect of hiding it",
                x_title="Attention weight",
                y_title=f"Effect ({unit})",
                also=["layer", "head", "query_token", "key_token", "norm_share"],
            )
        return charts

    def _by_head(self) -> AnyChart:
        """Return the change without each head: of the outcome, or with its sign of a given answer's log probability."""
        heads, unit = self.heads(), UNITS[self._outcome]
        name, shown = "effect", f"Effect ({unit})"
        if not self._undecided:
            name, shown = "log_change", "Change of the answer's log probability (nats)"
        cells = heat(
            heads.select(*_HEAD, name),
            "head",
            "layer",
            name,
            diverging=not self._undecided,
            numbers=".2g",
            title="Effect of removing a head",
            x_title="Head",
            y_title="Layer",
            color_title=shown,
        )
        return choose_kind(cells, heads)

    def _by_token(self) -> AnyChart:
        """Return the changes of the log probability of each token, for the heads that change an answer most."""
        place = pl.format("layer {}, head {}", "layer", "head").alias("place")
        sums = self.answer_tokens.group_by("text", *_HEAD).agg(pl.col("log_change").sum())
        most = sums.sort(pl.col("log_change").abs(), descending=True).group_by("text").head(_MOST)
        shown = self.answer_tokens.join(
            most.sort("text", "log_change").select("text", *_HEAD),
            on=["text", *_HEAD],
            maintain_order="right_left",
        ).with_columns(place, pl.format("{} ({})", "token", "query").alias("predicted"))
        cells = heat(
            shown.select("text", "place", "predicted", "query_token", "log_change"),
            "predicted",
            "place",
            "log_change",
            diverging=True,
            numbers=".2f",
            title="Tokens of the answer, without each head",
            x_title="Token of the answer (row that predicts it)",
            y_title="",
            color_title="Change of log probability (nats)",
            also=["query_token"],
        )
        return choose_present(cells, shown, "text", "Text")

    def sections(self) -> list[Section]:
        """Return the heads, the tokens of an answer, the estimates and the keys."""
        charts = self.charts()
        found = [Section("heads", "Every head", [_HEADS], ["effects"], self.heads())]
        if not self._undecided:
            drawn = [name for name in charts if name == "tokens"]
            found.append(
                Section("tokens", "Tokens of the answer", [_TOKENS], drawn, self.answer_tokens)
            )
        if "estimates" in charts:
            found.append(Section("estimates", "Estimate and removal", [_ESTIMATES], ["estimates"]))
        if "keys" in charts:
            found.append(
                Section("keys", "Keys of single rows", [_KEYS], ["keys"], self._keys_by_effect())
            )
        return found

    @property
    def _outcome(self) -> Answered:
        return self.provenance["settings"]["outcome"]

    def _agreement(self, name: str) -> float | None:
        """Return the rank correlation of a column with the effects of removal, over three heads or more."""
        heads = self.heads()
        found = heads.select(pl.corr(name, "effect", method="spearman")).item()
        return None if len(heads) < 3 or found is None or found != found else found


_HEADS = (
    "A head that is removed writes nothing, at any position; everything after it is computed by the model. Effect: how "
    "much the outcome changes; log change: how much the log probability of a given answer does. Effect of mean: the "
    "effect when the head writes the mean of its output over the text instead. Relative effect: the effect as a share "
    "of the largest."
)
_TOKENS = (
    "The change of the log probability of each token of the answer without a head: blue where it becomes less likely. "
    f"Drawn are the {_MOST} heads that change the answer's most. The number after a token is the row that predicts it; "
    "with --queries (queries=) its keys are hidden one by one."
)
_ESTIMATES = (
    "The estimate is to first order in the outputs of all heads and needs a few backward passes. Use it to choose the "
    "heads to look at; the effect of removing them is measured by running the model."
)
_KEYS = (
    "A key is hidden from one row of one head, whose other weights are scaled up to sum to 1. The norm share is what "
    "the key adds to this head's output; the effect is the change of the outcome, log change that of the log "
    "probability of a given answer. A key that has all of a row's weight is left out."
)
