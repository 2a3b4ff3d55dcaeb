"""The result of measuring answers: attention by segment with proven ends, the answer marked by segments."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.token_lines import Mark, TokenLine
from identilens.charts.views import View
from identilens.models.chats import REST, SINK, SO_FAR, TEMPLATE
from identilens.runs.result import Finding, Result
from identilens.runs.tables import decimals, integers
from identilens.studies.drawn import mean_of_rows
from identilens.studies.head_views import marked_line
from identilens.studies.outcomes import exactness

_PLACE = ["text", "token", "layer", "head"]
_ROW = {**integers(*_PLACE), "functional": pl.String}
_COLOURS = _LINES = 8
"""Segments with a letter, and answers that are shown."""

_NOT_CONTENT = [TEMPLATE, SO_FAR, SINK]
"""Segments that nobody wrote for the model to read."""

_CONTENT = ~pl.col("segment").is_in(_NOT_CONTENT)

MORE, LESS, OPEN = "more in every alternative", "less in every alternative", "open"
"""Whether one segment gets more attention than another."""

_MARKED = "each token with the letter of the segment (not the template or answer) with most of its attention, in %"
_OTHER = "other segments, template, answer so far"

_FINDING = """\
Without {removed!r}, measured in the model, the answer to text {text} is {times:.3g} times less likely.
{value:.1%} of the attention of the answer's {tokens:token} is on {segment!r}.
In every alternative with the same output of each head, {exactly}, it is between {lo:≥.1%} and \
{hi:≤.1%}{drawn}{ordered}.
"""
_DRAWN = ", estimated from {rows} of {population} rows"

_TILES = """\
{probability:.2g} → {without:.2g} | probability of the answer to text {text} without {removed!r}
{value:.1%} | of the attention is on {segment!r}
{lo:≥.1%} | is there in every alternative{drawn}"""


@dataclass(frozen=True, kw_only=True)
class Answers(Result):
    """Where the attention of answers lies, by segment of the conversation, and what of it is certain.

    Attributes:
        table: Attention ``value`` of every token of the answer, layer and head to each segment, and to a named segment
            less another one; of drawn rows again for each tolerance, with the proven ends ``lo`` and ``hi`` over all
            alternatives. Where more than three segments are named, there are no differences.
        positions: Every token of prompt and answer with its segment; of the answer also its number there, and its
            ``probability`` and ``rank`` in the pass (1 is the most likely).
        needed: For every segment that can be taken out of the prompt and token of the answer: the probability of the
            token ``without`` the segment, measured in the model.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.answer(lens, {"prompt": "Snow fell on the", "answer": " harbour."}, bounded=64)
        >>> found.segments().filter(tolerance="0")["segment"].to_list()
        ['template', 'prompt', 'answer so far']
        >>> found.segments("layer").columns[:4]
        ['layer', 'segment', 'tolerance', 'value']
    """

    analysis: ClassVar = "answer"
    title: ClassVar = "Answers: where their attention lies, and what they need"
    schema: ClassVar = {
        "table": {**_ROW, "tolerance": pl.String, **decimals("value", "lo", "hi")},
        "positions": {
            **integers("text", "position"),
            **dict.fromkeys(("token", "segment"), pl.String),
            "answer": pl.Int64,
            "probability": pl.Float64,
            "rank": pl.Int64,
        },
        "needed": {
            "text": pl.Int64,
            "segment": pl.String,
            "token": pl.Int64,
            "without": pl.Float64,
        },
    }
    keys: ClassVar = {
        "table": [*_ROW, "tolerance"],
        "positions": ["text", "position"],
        "needed": ["text", "segment", "token"],
    }
    words: ClassVar = {
        "value": "Attention: mean share of the attention of rows",
        "lo": "Lo: mean of the proven least values",
        "hi": "Hi: mean of the proven greatest values",
        "lo_error": "Error of lo: standard error of the mean where rows were drawn",
        "hi_error": "Error of hi: standard error of the mean where rows were drawn",
    }
    views: ClassVar = {
        "lines": View(
            title="The answer, marked by segment",
            text="Every token of the answer, marked by the segment of the prompt that gets most of its attention: the "
            "mean of layers and heads, in percent.",
            lines="token_lines",
        ),
        "segments": View(
            title="Attention of the answer by segment",
            text="The mean over all tokens of the answer, layers and heads. Every choice of weights that gives each "
            "head the same output keeps the mean between lo and hi; with a tolerance above 0 each row changes by "
            "itself. Ends are proven in rows that the seed draws, so many of each layer, from those of all heads and "
            "tokens; where these are not all, their means are estimates.",
            table="segments",
            listed=True,
        ),
        "order": View(title="Which segment has more", table="order", listed=True),
        "needs": View(title="What the answer needs", table="needs", listed=True),
    }

    positions: pl.DataFrame
    needed: pl.DataFrame

    def segments(self, *by: str) -> pl.DataFrame:
        """Return the mean attention to each segment with its ends, by further columns such as ``layer``."""
        own = self.table.filter(pl.col("functional").is_in(self._segments))
        return mean_of_rows(own, by, _PLACE, 0.0, 1.0).rename({"functional": "segment"})

    @property
    def _segments(self) -> list[str]:
        return [*self.positions["segment"].unique().to_list(), SINK]

    def order(self) -> pl.DataFrame:
        """Return how much more attention each named segment gets than each other one, with ends and a ``verdict``.

        Ends that are estimated are taken two standard errors farther; without a known error the order is open.
        """
        own = self.table.filter(~pl.col("functional").is_in(self._segments))
        found = mean_of_rows(own, [], _PLACE, -1.0, 1.0)
        lo, hi = pl.col("lo") - 2 * pl.col("lo_error"), pl.col("hi") + 2 * pl.col("hi_error")
        verdict = pl.when(lo > 0).then(pl.lit(MORE)).when(hi < 0).then(pl.lit(LESS))
        return found.with_columns(verdict=verdict.otherwise(pl.lit(OPEN)))

    def needs(self) -> pl.DataFrame:
        """Return how likely each answer is, and without each segment of the prompt, the most needed segment first.

        ``probability`` and ``without`` are products over the answer's tokens, ``change`` the change of the logarithm in
        nats; ``at`` is the token that becomes less likely by the largest factor, from ``before`` to ``after``.
        """
        before, after = pl.col("before"), pl.col("after")
        ratio = after.log() - before.log()
        answered = self.positions.drop_nulls("answer").select(
            "text", token="answer", at="token", before="probability"
        )
        known = self.needed.rename({"without": "after"}).join(
            answered, on=["text", "token"], maintain_order="left"
        )
        needs = known.group_by("text", "segment", maintain_order=True).agg(
            probability=before.product(),
            without=after.product(),
            change=ratio.sum(),
            **{name: pl.col(name).sort_by(ratio).first() for name in ("at", "before", "after")},
        )
        return needs.sort("text", "change", maintain_order=True)

    def _last(self, *by: str) -> pl.DataFrame:
        """Return `segments` for the last tolerance, with those of which no row was drawn."""
        last = self.table["tolerance"].drop_nulls().tail(1).to_list()
        means = self.segments(*by)
        return means.filter(pl.col("tolerance").is_in(last) | pl.col("tolerance").is_null())

    def summary(self) -> Finding:
        """Return how much attention the first segment gets, its order among others, and what the answer needs."""
        means = self._last()
        # What was named comes before the rest of a prompt.
        rank = _CONTENT, pl.col("segment") != REST, "value"
        first = means.sort(rank, maintain_order=True).row(-1, named=True)
        segment = first["segment"]
        texts = self.positions.filter(segment=segment)["text"].unique().to_list()
        answered = self.positions.filter(pl.col("text").is_in(texts))["answer"].count()
        order = self.order().filter(
            pl.col("verdict") != OPEN,
            pl.col("tolerance").eq_missing(first["tolerance"]),
            pl.col("functional").str.starts_with(f"{segment} − "),
        )
        other = pl.col("functional").str.strip_prefix(f"{segment} − ")
        ordered = order.select(pl.format("; {} than '{}'", "verdict", other))
        drawn = (first["rows"] or first["population"]) < first["population"]
        numbers = {
            **first,
            "tokens": answered,
            "exactly": exactness(first["tolerance"] or "0"),
            "drawn": _DRAWN.format(**first) if drawn else "",
            "ordered": "".join(ordered.to_series()),
        }
        needs = self.needs().with_columns(removed="segment", times=(-pl.col("change")).exp())
        for row in needs.filter(pl.col("times") > 1).head(1).drop("segment").to_dicts():
            numbers |= row
        return Finding.of(_FINDING, _TILES, **numbers)

    def token_lines(self) -> list[TokenLine]:
        """Return the first answers, their tokens marked by the segment of the prompt with most of their attention."""
        ranked = self._last().sort("value", descending=True, maintain_order=True)
        content = ranked.filter(_CONTENT)["segment"].head(_COLOURS)
        marks = {name: Mark(name, chr(ord("A") + at), at) for at, name in enumerate(content)}
        marks[_OTHER] = Mark(_OTHER, "·", None)
        percent = (100 * pl.col("value")).round(1)
        largest = pl.col("segment", "value").filter(_CONTENT).first()
        means = self._last("text", "token").sort("value", descending=True)
        marked = means.group_by("text", "token").agg(
            largest, note=pl.format("{}: {} %", "segment", percent).str.join("; ")
        )
        answered = self.positions.drop_nulls("answer").select("text", name="token", token="answer")
        rows = answered.join(marked, on=["text", "token"], maintain_order="left").select(
            "text",
            "note",
            token="name",
            mark=pl.col("segment").replace_strict({name: name for name in marks}, default=_OTHER),
            value=pl.format("{}", (100 * pl.col("value")).round().cast(pl.Int64)),
        )
        return [
            marked_line(
                f"The answer to text {own['text'][0]}: {_MARKED}",
                own,
                marks,
                dict.fromkeys(marks, ""),
            )
            for own in rows.partition_by("text", maintain_order=True)[:_LINES]
        ]
