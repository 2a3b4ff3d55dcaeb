"""The result of measuring answers: attention by segment with proven ends, the answer marked by segments."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.labels import said
from identilens.charts.token_lines import Mark, TokenLine
from identilens.charts.views import View
from identilens.models.chats import REST, SINK, SO_FAR, TEMPLATE
from identilens.runs.result import Finding, Result
from identilens.runs.tables import integers
from identilens.studies.certify.rows import CLAIMS
from identilens.studies.drawn import mean_of_rows
from identilens.studies.head_views import marked_line
from identilens.studies.outcomes import WITHOUT, exactness, segment_needs

_SHOWN = 8
"""Answers that are shown, and colours of segments."""

_NEEDED, _CERTAIN = 2.0, 0.01
"""How many times less likely an answer is without a segment that it needs, and certain attention that is marked."""

_FACTS = """\
{value:.0%} of the attention
{lo:≥.0%} certain
without it {times:.3g} times less likely
"""

_CONTENT = ~pl.col("segment").is_in([TEMPLATE, SO_FAR, SINK])
"""Segments that somebody wrote for the model to read."""

_FINDING = """\
Without {removed!r}, measured in the model, {rest} to text {text} is {times:.3g} times less likely.
{value:.1%} of the attention of the answer's tokens is on {segment!r}.
In alternatives with the same output of each head, {exactly}, it is between {lo:≥.1%} and {hi:≤.1%}, {by}.
"""

_TILES = """\
{probability:.2g} → {without:.2g} | probability of {rest} to text {text} without {removed!r}
{value:.1%} | of the attention is on {segment!r}
{lo:≥.1%} | is there in every alternative, {by}"""


@dataclass(frozen=True, kw_only=True)
class Answers(Result):
    """Where the attention of answers lies, by segment of the conversation, and what of it is certain.

    Attributes:
        table: Attention ``value`` of the row of every token of the answer, in each layer and head, to each segment, and
            to a named segment less another one; of drawn rows again for each tolerance, with the proven ends ``lo`` and
            ``hi`` over all alternatives. The row (``query``) before a token predicts it. Where more than three segments
            are named, there are no differences. The columns are those of `identilens.certify`.
        positions: Every token of prompt and answer with its segment; of the answer also its number there, and its
            ``probability`` in the pass.
        needed: For every segment that can be taken out and token of the answer besides it: the probability of the
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
        "table": CLAIMS,
        "positions": {
            **integers("text", "position", "answer"),
            **dict.fromkeys(("token", "segment"), pl.String),
            "probability": pl.Float64,
        },
        "needed": WITHOUT,
    }
    words: ClassVar = {
        "value": "Attention: mean share of the attention of rows",
        "lo": "Lo: mean of the proven least values",
        "hi": "Hi: mean of the proven greatest values",
    }
    views: ClassVar = {
        "lines": View(
            title="The conversation, marked by what the answer needs",
            text="A segment is filled where the answer is at least twice less likely without it, and framed where at "
            "least 1 % of the answer's attention is certain to be on it: in every alternative with the same outputs of "
            "the heads, estimated where rows are drawn.",
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
        "needs": View(title="What the answer needs", table="needs", listed=True),
    }

    positions: pl.DataFrame
    needed: pl.DataFrame

    def segments(self, *by: str) -> pl.DataFrame:
        """Return the mean attention to each segment with its ends, by further columns such as ``layer``."""
        means = mean_of_rows(self.table.filter(self._of_segments), by, 0.0, 1.0)
        return means.drop("verdict").rename({"functional": "segment"})

    @property
    def _of_segments(self) -> pl.Expr:
        return pl.col("functional").is_in([*self.positions["segment"], SINK])

    def order(self) -> pl.DataFrame:
        """Return how much more attention each named segment gets than each other one, with ends and a ``verdict``."""
        return mean_of_rows(self.table.filter(~self._of_segments), [])

    def needs(self) -> pl.DataFrame:
        """Return how likely each answer is without each segment of the prompt; see `segment_needs`."""
        return segment_needs(self.needed)

    @property
    def _lost(self) -> pl.DataFrame:
        """The segments without which an answer is less likely."""
        return self.needs().filter(pl.col("times") > 1)

    def _leading(self, *by: str) -> pl.DataFrame:
        """Return `segments` at the first tolerance, on which findings rest."""
        leading = pl.col("tolerance").eq_missing(self.table["tolerance"].drop_nulls().first())
        return self.segments(*by).filter(leading | pl.col("tolerance").is_null())

    def summary(self) -> Finding:
        """Return what the answer needs, how much attention the first segment gets, and its order among others."""
        means = self._leading()
        # What was named comes before the rest of a prompt.
        ranked = means.sort(_CONTENT, pl.col("segment") != REST, "value", maintain_order=True)
        first = ranked.row(-1, named=True)
        lost = self._lost.rename({"segment": "removed"})
        [most] = lost.head(1).to_dicts() or [{}]
        written = self.positions.drop_nulls("answer")["segment"]
        rest = "the rest of the answer" if most.get("removed") in written else "the answer"
        return Finding.of(
            _FINDING,
            _TILES,
            **first | most,
            rest=rest,
            by="proven"
            if first["rows"] == first["population"]
            else "estimated from {rows} of {population} rows".format(**first),
            exactly=exactness(first["tolerance"] or "0"),
        )

    def token_lines(self) -> list[TokenLine]:
        """Return the first prompts and answers, coloured by what the answer needs and what it certainly attends to."""
        facts = self._leading("text").join(self._lost, on=["text", "segment"], how="left")
        facts = facts.filter(_CONTENT).sort("value", descending=True, maintain_order=True)
        marked = self.positions.with_columns(
            pl.col("answer").is_null(), mark="segment", value=pl.lit(""), note="segment"
        )
        lines = []
        parts = marked.partition_by("text", "answer", maintain_order=True, as_dict=True)
        for (text, asked), rows in [*parts.items()][: 2 * _SHOWN]:
            shares = {}
            marks = {name: Mark(name, "", None) for name in (TEMPLATE, SO_FAR)}
            for number, fact in enumerate(facts.filter(text=text).to_dicts()):
                name, needed = fact["segment"], (fact["times"] or 0) >= _NEEDED
                shown = needed or fact["lo"] is None or fact["lo"] >= _CERTAIN
                colour = number % _SHOWN if shown else None
                marks[name] = Mark(name, chr(ord("A") + number), colour, needed)
                shares[name] = ", ".join(said(_FACTS, fact))
            title = f"The {'prompt of' if asked else 'answer to'} text {text}"
            # The answer itself has none of the segments.
            lines.append(marked_line(title, rows, marks, shares if asked else {}))
        return lines
