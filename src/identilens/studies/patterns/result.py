"""The result of scoring heads on patterns: scores with proven intervals, and how far texts differ."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import scatter
from identilens.charts.views import View
from identilens.measures.attention.intervals import POINT
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, decimals
from identilens.studies.outcomes import ONLY_FEW, exactness, normed_heads

_PLACE = ["corpus", "kind", "layer", "head", "pattern", "tolerance"]
MEANS = ("score", "lo", "hi")
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
            attention to the pattern's keys, and ``lo`` and ``hi``, the means of its proven ends. ``corpus`` is
            ``texts``, or ``repeated`` for random sequences.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.patterns(
        ...     lens, "A cat saw a cat.", pattern="induction", layers=3, heads=0, repeated=12, rows=2, tolerance=0
        ... )
        >>> found.by_head().select("corpus", "rows").rows()
        [('texts', 1), ('repeated', 8)]
    """

    analysis: ClassVar = "patterns"
    title: ClassVar = "Patterns of attention"
    schema: ClassVar = {
        "table": {
            **HEAD,
            **dict.fromkeys(("corpus", "pattern", "tolerance"), pl.String),
            "rows": pl.Int64,
            **decimals(*MEANS),
        },
    }
    words: ClassVar = {
        "score": "Score: mean attention to the keys of the pattern",
        "lo": "Lo: mean of the proven least values in any alternative",
        "hi": "Hi: mean of the proven greatest values in any alternative",
        "error": "Error: standard error over texts, which says nothing about alternatives",
        "place": "Head, counted through the layers",
        "state": "By the threshold",
    }
    views: ClassVar = {
        "scores": View(
            scatter,
            ("place", "score", "state"),
            title="Patterns by layer and head",
            text="The point is a head's mean attention to the keys of a pattern. The line runs over the means of the "
            "proven ends: no choice of alternatives with the same outputs has a score outside. Rows are drawn by the "
            "seed from those that have the pattern, so many of each text, the same for all heads of a layer.\n{normed}",
            table="by_head",
            also=("name", "lo", "hi"),
            choices=("pattern", "corpus", "tolerance"),
            look={"span": ("lo", "hi"), "y_domain": (0, 1)},
        ),
        "counts": View(title="Heads called by a pattern", table="counts", listed=True),
    }

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
        layer, head = pl.col("layer"), pl.col("head")
        name = pl.format("L{}H{}", layer, head)
        return means.with_columns(state=state, name=name, place=layer * (head.max() + 1) + head)

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
                pl.col("name", "score").sort_by("score").last().name.prefix("highest_"),
            )
        )

    def summary(self) -> Finding:
        """Return how many heads are called by a pattern, in how many every alternative says so, and the highest."""
        counts = self.counts()
        tolerance = counts["tolerance"][0]
        first = counts.filter(tolerance=tolerance)
        top = first.sort("highest_score", maintain_order=True).row(-1, named=True)
        fixed = (self.table["hi"] - self.table["lo"] < POINT).all()
        return Finding.of(
            _FINDING,
            _TILES,
            **top | {name: int(first[name].sum()) for name in ("heads", "called", "identified")},
            limit=self.provenance["settings"]["least_score"],
            exactly=exactness(tolerance),
            exact=counts.filter(pl.lit(tolerance != "0"), tolerance="0")["identified"].sum()
            or None,
            few=ONLY_FEW if fixed else None,
            normed=normed_heads(self.provenance["model"]),
        )


_FINDING = """\
In {called:,} of {heads:,} cases a head is called by a pattern: its mean attention to its keys is at least {limit:g}, \
in {identified:,} of them in every alternative with the same outputs, {exactly}.
With exactly the same outputs it is so in {exact:,}.
The highest score is {highest_score:.2f}: {pattern} by {kind} head {highest_name} ({corpus}).
No other weights with the same outputs change a score. {few}."""

_TILES = """\
{called:,} | times a head is called by a pattern
{identified:,} | times it is so in every alternative: identified"""
