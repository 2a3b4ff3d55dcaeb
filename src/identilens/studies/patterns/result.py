"""The result of scoring heads on patterns: scores with proven intervals, and how far texts differ."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose_present, rule, scatter
from identilens.charts.page import Section
from identilens.measures.attention.detectors import PATTERNS
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, decimals, ends, some_of, span
from identilens.studies.outcomes import FEW_KEYS, exactness, head_in_words, normed_heads

_PLACE = ["corpus", "kind", "layer", "head", "pattern", "tolerance"]
MEANS = ("score", "lo", "hi", "largest", "certified")
_DRAWS, _SHOWN, _CELLS = 1_000, 12, 5_000
"""Draws of the bootstrap, heads or patterns in a terminal, and points of a chart."""

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
        """Return the means of each head over all drawn rows, an interval over texts, and what the threshold says.

        ``low`` and ``high`` are the 2.5 % and 97.5 % quantiles of the mean score when whole texts are drawn again
        (1,000 times): how far it depends on the texts, and nothing about alternatives. Missing for fewer than three.
        """
        threshold, found = self.provenance["settings"]["least_score"], []
        generator = np.random.default_rng(self.provenance["seed"])
        for place, texts in self.table.group_by(_PLACE, maintain_order=True):
            weights, values = texts["rows"].to_numpy(), texts.select(MEANS).to_numpy()
            means = dict(
                zip(MEANS, np.average(values, axis=0, weights=weights).tolist(), strict=True)
            )
            low = high = None
            if len(texts) > 2:
                drawn = generator.integers(len(texts), size=(_DRAWS, len(texts)))
                again = (weights * values[:, 0])[drawn].sum(1) / weights[drawn].sum(1)
                low, high = np.quantile(again, (0.025, 0.975)).tolist()
            state = OTHER
            if means["hi"] >= threshold:
                state = CALLED if means["score"] >= threshold else POSSIBLE
            if means["lo"] >= threshold:
                state = IDENTIFIED
            named = dict(zip(_PLACE, place, strict=True))
            counts = {"texts": len(texts), "rows": int(weights.sum())}
            found.append({**named, **counts, **means, "low": low, "high": high, "state": state})
        return pl.DataFrame(found, schema_overrides={"low": pl.Float64, "high": pl.Float64})

    def summary(self) -> Finding:
        """Return for each pattern how many heads are called by it, and how many of them are identified."""
        heads, limit = self.by_head(), self.provenance["settings"]["least_score"]
        first, left = heads["tolerance"][0], 0
        lines = [
            "A head is called by a pattern if its score, the mean attention to the pattern's keys over the rows "
            f"looked at (others for each pattern), is at least {limit:g}. It is identified if every choice of "
            "alternatives in these rows, with the same outputs, has such a score."
        ]
        numbers: dict[str, Any] = {"called": 0, "identified": 0, "heads": len(heads)}
        groups = heads.group_by("tolerance", "corpus", "pattern", maintain_order=True)
        many = heads.select("tolerance", "corpus", "pattern").n_unique() > _SHOWN
        for (tolerance, corpus, pattern), own in groups:
            states = own["state"].to_list()
            identified = states.count(IDENTIFIED)
            called = identified + states.count(CALLED)
            if tolerance == first:
                numbers["called"] += called
                numbers["identified"] += identified
            if many and not called:
                left += 1
                continue
            top = own.sort("score", maintain_order=True).row(-1, named=True)
            where = "" if corpus == "texts" else " on repeated random tokens"
            same = exactness(str(tolerance))
            nearly = "" if same == "exactly" else f" (outputs the same {same})"
            what = PATTERNS.get(str(pattern), f"the relation {pattern}")
            more, of_these = states.count(POSSIBLE), f", {identified:,} of these identified"
            lines.append(
                f"{what[:1].upper()}{what[1:]}{where}{nearly}: {some_of(called, len(own), 'head')} called by it"
                f"{of_these * (called > 0)}{f' (other heads, in some alternatives only: {more:,})' * (more > 0)}. The "
                f"highest score is {top['score']:.2f} ({head_in_words(top)}), and {span(top['lo'], top['hi'], '.2f')} "
                "in alternatives."
            )
        if heads.select((pl.col("hi") - pl.col("lo")).max()).item() < PIN_TOLERANCE:
            lines.append(
                f"No other weights with the same outputs change any of these scores. {FEW_KEYS}"
            )
        if left:
            lines.append(
                f"No head is called in {left:,} other cases of pattern, texts and tolerance."
            )
        lines += normed_heads(self.provenance["model"])
        headline = [
            (f"{numbers['called']:,}", "times a head is called by a pattern"),
            (f"{numbers['identified']:,}", "times it is so in every alternative: identified"),
        ]
        return Finding("\n".join(lines), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the heads with the highest scores."""
        highest = self.by_head().sort("score", descending=True, maintain_order=True).head(_SHOWN)
        score, *others = (pl.col(name).round(3) for name in (MEANS[0], *MEANS[3:], "low", "high"))
        columns = ["pattern", "corpus", "tolerance", "layer", "head", "rows"]
        return {"Highest scores": highest.select(*columns, score, *ends(3), *others, "state")}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``scores``: the score of each head with its proven interval, by layer and head."""
        heads = self.by_head().head(_CELLS)
        size = heads["head"].max() + 1  # pyright: ignore[reportOperatorIssue, reportOptionalOperand] - a number
        frame = heads.with_columns(place=pl.col("layer") * size + pl.col("head"))
        chart = scatter(
            frame.select(*_PLACE, "place", "score", "lo", "hi", "low", "high", "state"),
            "place",
            "score",
            "state",
            size=40,
            span=("lo", "hi"),
            also=("layer", "head", "lo", "hi", "low", "high"),
            y_domain=(0, 1),
            x_title=f"Head, counted through all layers ({size} each)",
            y_title="Score and its proven interval",
            color_title="By the threshold",
            title="Patterns by layer and head",
        )
        limit = self.provenance["settings"]["least_score"]
        chart = rule(chart, y=limit, label="threshold")
        for column in ("pattern", "corpus", "kind", "tolerance"):
            chart = choose_present(chart, frame, column, column.capitalize())
        return {"scores": chart}

    def sections(self) -> list[Section]:
        """Return the chart and both tables, heads with high scores first."""
        heads = self.by_head().sort("score", descending=True, maintain_order=True)
        return [
            Section("scores", "Scores", _SCORES, ["scores"]),
            Section("heads", "Heads in numbers", frame=heads),
            Section("texts", "Texts in numbers", frame=self.table),
        ]


_SCORES = (
    "The point is a head's mean attention to the keys of a pattern. The line runs over the means of the proven ends: "
    "no choice of alternatives with the same outputs has a score outside. It is another thing than the interval over "
    "texts (low, high), which says how far the score depends on the texts that were chosen.",
)
