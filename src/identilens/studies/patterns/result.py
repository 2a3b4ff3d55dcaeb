"""The result of scoring heads on patterns: scores with proven intervals, and how far texts differ."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose_present, scatter
from identilens.charts.page import Section
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, decimals
from identilens.studies.outcomes import FEW_KEYS, exactness, normed_heads

_PLACE = ["corpus", "kind", "layer", "head", "pattern", "tolerance"]
MEANS = ("score", "lo", "hi", "largest", "certified")
_CELLS = 5_000
"""Points of a chart."""

IDENTIFIED, CALLED, POSSIBLE, OTHER = (
    "identified",
    "called, not identified",
    "may be called",
    "not called",
)
"""What a pattern's threshold says of a head: every alternative reaches it; the head does; some may; none does."""


@dataclass(frozen=True, kw_only=True)
class PatternScores(Result):
    """Scores of heads on published patterns, between proven ends.

    Attributes:
        table: One row for each text, head, pattern and tolerance: ``rows`` that were drawn; ``score``, the mean
            attention to the pattern's keys, and ``lo`` and ``hi``, the means of its proven ends; the share of the rows
            whose ``largest`` weight is on the pattern, and that in which it is there in every alternative
            (``certified``). Of a relation of a treebank, rows are arcs, and ``largest`` and ``certified`` compare the
            word with all others in its place. ``corpus`` is ``texts``, or ``repeated`` for random sequences.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.patterns(lens, "A cat saw a cat.", pattern="induction", layers=3, heads=0, repeated=12, rows=2)
        >>> found.by_head().select("corpus", "rows").rows()
        [('texts', 1), ('repeated', 8)]
    """

    analysis: ClassVar = "patterns"
    title: ClassVar = "Patterns of attention"
    schema: ClassVar = {
        "table": {
            **HEAD,
            "corpus": pl.String,
            "pattern": pl.String,
            "tolerance": pl.String,
            "rows": pl.Int64,
            **decimals(*MEANS),
        },
    }
    keys: ClassVar = {"table": ["text", *_PLACE]}

    def by_head(self) -> pl.DataFrame:
        """Return the means of each head over all drawn rows, and what the threshold says.

        ``error`` is the standard error of the mean score over texts: it says nothing about alternatives.
        """
        rows, limit = pl.col("rows"), self.provenance["settings"]["least_score"]
        means = self.table.group_by(_PLACE, maintain_order=True).agg(
            texts=pl.len(),
            rows=rows.sum(),
            error=pl.col("score").std() / pl.len().sqrt(),
            **{name: (pl.col(name) * rows).sum() / rows.sum() for name in MEANS},
        )
        state = pl.lit(OTHER)
        for end, word in (("hi", POSSIBLE), ("score", CALLED), ("lo", IDENTIFIED)):
            state = pl.when(pl.col(end) >= limit).then(pl.lit(word)).otherwise(state)
        return means.with_columns(state=state, name=pl.format("L{}H{}", "layer", "head"))

    def counts(self) -> pl.DataFrame:
        """Return how many heads each pattern calls, and how many of these in every alternative."""
        state = pl.col("state")
        return (
            self.by_head()
            .group_by("tolerance", "corpus", "kind", "pattern", maintain_order=True)
            .agg(
                pl.len().alias("heads"),
                state.is_in([CALLED, IDENTIFIED]).sum().alias("called"),
                state.eq(IDENTIFIED).sum().alias("identified"),
                pl.col("name", "score").sort_by("score").last().name.prefix("highest "),
            )
        )

    def summary(self) -> Finding:
        """Return how many heads are called by a pattern, in how many every alternative says so, and the highest."""
        counts, limit = self.counts(), self.provenance["settings"]["least_score"]
        tolerance = counts["tolerance"][0]
        first = counts.filter(tolerance=tolerance)
        called, identified = int(first["called"].sum()), int(first["identified"].sum())
        top = first.sort("highest score", maintain_order=True).row(-1, named=True)
        corpus = " on repeated random tokens" * (top["corpus"] != "texts")
        lines = [
            f"In {called:,} of {int(first['heads'].sum()):,} cases a head is called by a pattern: its mean attention "
            f"to its keys is at least {limit:g}. In {identified:,} of them every alternative with the same outputs, "
            f"{exactness(tolerance)}, has that.",
            f"The highest score is {top['highest score']:.2f}: {top['pattern']}{corpus} by {top['kind']} head "
            f"{top['highest name']}.",
        ]
        if (self.table["hi"] - self.table["lo"] < PIN_TOLERANCE).all():
            lines.append(f"No other weights with the same outputs change a score. {FEW_KEYS}")
        headline = [
            (f"{called:,}", "times a head is called by a pattern"),
            (f"{identified:,}", "times it is so in every alternative: identified"),
        ]
        numbers = {"called": called, "identified": identified, "heads": int(counts["heads"].sum())}
        return Finding("\n".join(lines), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return how many heads each pattern calls."""
        return {"Heads called by a pattern": self.counts()}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``scores``: the score of each head with its proven interval, by layer and head."""
        heads = self.by_head().head(_CELLS).with_row_index("place")
        chart = scatter(
            heads,
            "place",
            "score",
            "state",
            span=("lo", "hi"),
            also=("name", "lo", "hi"),
            y_domain=(0, 1),
            x_title="Head, in the order of the table",
            y_title="Score and its proven interval",
            color_title="By the threshold",
            title="Patterns by layer and head",
        )
        for column in ("pattern", "corpus", "kind", "tolerance"):
            chart = choose_present(chart, heads, column, column.capitalize())
        return {"scores": chart}

    def sections(self) -> list[Section]:
        """Return the chart and all tables, heads with high scores first."""
        heads = self.by_head().sort("score", descending=True, maintain_order=True)
        text = _SCORES, *normed_heads(self.provenance["model"])
        return [
            Section("scores", "Scores", text, ["scores"], self.counts()),
            Section("heads", "Heads in numbers", frame=heads),
            Section("texts", "Texts in numbers", frame=self.table),
        ]


_SCORES = (
    "The point is a head's mean attention to the keys of a pattern. The line runs over the means of the proven ends: "
    "no choice of alternatives with the same outputs has a score outside. The standard error over texts is another "
    "thing: it says how far the score depends on the texts that were chosen."
)
