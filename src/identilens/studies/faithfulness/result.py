"""The result of testing explanations: what removing parts in their order does, beside random orders, and stability."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import polars as pl
import torch

from identilens.charts.kit import intervals
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine
from identilens.charts.views import View
from identilens.measures.explanations.agreement import bootstrap_interval, permutation_p
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, decimals, integers, table_of

BETTER = 0.05
"""Largest p value of an order that is better than random ones."""

ROUNDED = 1e-12
"""Difference up to which means are equal."""

SHOWN = 3
"""Texts whose tokens are shown."""

GROUP = ("intervention", "outcome")
ORDER = (*GROUP, "explanation")
_FAITHFUL = {
    **dict.fromkeys(ORDER, pl.String),
    **decimals("mean", "low", "high"),
    **integers("texts", "left_out"),
    **decimals("random", "p", "stable"),
}

_doubles = partial(torch.tensor, dtype=torch.float64)


_NONE = (
    "No order is better than another: no row sees several keys, no text has two tokens that can be taken out, or "
    "removal changes the model by no more than rounding does (the noise floor)."
)
_FINDING = """\
No order follows what removal does to the model better than that of {explanation}: score {mean:.3g}; random orders \
have {random:.3g} (p = {p:.2g}).
Not shown to be better than random orders (p > {better}): {chance}.
With other weights of the same head output its order agrees by {stable:.2f}.
{decision}
"""
_DECISION = """\
Text {text}: the answer {answer!r} (the model's own: {own_answer!r}) has probability {probability:.3g}, {left:.2g} \
without {token!r}; enough for nine tenths: {needed}."""
_SCORES = """\
Parts are removed in each explanation's order. The score of a row's keys is the mean change of the model, in growing \
groups, on a scale from the worst order (0) to the best (1) that a greedy search finds. That of a decision's tokens is \
the mean lost probability without the first tokens (without), and the mean change of the probability with them alone \
(alone).
Intervals are 95 % intervals over texts (bootstrap-t; of fewer than 8 texts Student's). Neither they nor p are \
corrected for the number of explanations.
Stable is the rank correlation with the explanation of other weights with the same head output, drawn evenly. It \
proves nothing about other alternatives; intervals of weights (identilens certify) hold for all.
"""
_DECISIONS = """\
Every token is taken out alone, and the model is run again: the number beside it is the change of the probability of \
the same answer, as a share of it. Special tokens stay, and for a language model the last token.
Tokens with ✓ are enough: with all others taken out, the answer has at least nine tenths of its probability. They were \
found by adding tokens in the order of what is lost without each; a smaller set may exist.
"""


def by_text(table: pl.DataFrame, by: Sequence[str], measure: str) -> pl.DataFrame:
    """Return the means of a measure over the rows of each text, by group, and how many rows have none."""
    value = pl.col(measure)
    texts = table.group_by(*by, "text", maintain_order=True).agg(
        value.mean().alias("means"), left_out=value.null_count()
    )
    return texts.group_by(*by, maintain_order=True).agg(
        pl.col("means").drop_nulls(), pl.col("left_out").sum()
    )


@dataclass(frozen=True, kw_only=True)
class Faithfulness(Result):
    """Faithfulness of explanations of attention rows or decisions, and their stability.

    Attributes:
        table: One row for each attention row or decision, intervention, outcome and order: rank correlation with the
            effects of single parts, area over the perturbation curve (``aopc``; of a decision its comprehensiveness
            ``without`` the first tokens, and minus its sufficiency with them ``alone``), and its place between the
            worst and the best order (``naopc``), null without effects apart by more than the noise ``floor``; ``p``,
            the share of random orders, and itself, whose area is as good. Random orders are numbered by ``draw``.
        determinacy: One row for each attention row and explanation: rank agreement
            of the explanation with itself over alternatives, null without an order, and their total variation distance.
        needed: One row for each token of a decision's text that can be removed: the answer, the model's own one
            (another only if an answer was named), its probability, its change without the token, and whether the token
            is one of those that are enough.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> found = idl.faithfulness(lens, idl.examples()[0], layers=5, rows=1, groups=(1, 2), interventions="zero")
        >>> found.faithful().columns[3:]
        ['mean', 'low', 'high', 'texts', 'left_out', 'random', 'p', 'stable']
    """

    analysis: ClassVar = "faithfulness"
    title: ClassVar = "Are explanations faithful, and stable?"
    schema: ClassVar = {
        "table": {
            **HEAD,
            **integers("query", "parts", "draw"),
            **dict.fromkeys(ORDER, pl.String),
            **decimals("floor", "correlation", "aopc", "naopc", "p"),
        },
        "determinacy": {
            **HEAD,
            **integers("query"),
            "explanation": pl.String,
            **decimals("total_variation", "agreement"),
        },
        "needed": {
            **integers("text", "position"),
            **dict.fromkeys(("token", "answer", "own_answer"), pl.String),
            "enough": pl.Boolean,
            **decimals("probability", "change"),
        },
    }

    words: ClassVar = {
        "mean": "Score of the order",
        "stable": "Agreement with itself over alternatives",
        "outcome": "Change of",
        "intervention": "Removed by",
        "p": "p: the share of random orders that do as well, this one among them",
        "random": "random: the mean score of random orders",
    }
    views: ClassVar = {
        "decisions": View(title="Decisions", text=_DECISIONS, lines="token_lines"),
        "faithful": View(
            intervals,
            ("explanation", "low", "high", "mean"),
            title="Orders beside random ones",
            text=_SCORES,
            table="faithful",
            also=("low", "high", "random", "p"),
            choices=GROUP,
            listed=True,
        ),
    }

    determinacy: pl.DataFrame
    needed: pl.DataFrame

    def faithful(self, measure: str = "") -> pl.DataFrame:
        """Return the mean of a measure by intervention, outcome and explanation, beside random orders, and stability.

        The measure is ``naopc``, ``correlation`` or ``aopc``; by default ``naopc``, and ``aopc`` of decisions. ``p``
        tests the mean against those of random orders; ``left_out`` counts rows without the measure; ``stable`` is the
        mean agreement.
        """
        measure = measure or ("aopc" if len(self.needed) else "naopc")
        mean = pl.col("means").list.mean()
        draws = by_text(self.table.filter(explanation="random"), [*GROUP, "draw"], measure)
        random = draws.group_by(GROUP).agg(mean.alias("orders"), random=mean.mean())
        stable = by_text(self.determinacy, ["explanation"], "agreement")
        orders = (
            by_text(self.table, ORDER, measure)
            .filter(pl.col("means").list.len() > 0)
            .join(random, GROUP, maintain_order="left")
            .join(
                stable.select("explanation", stable=mean),
                "explanation",
                "left",
                maintain_order="left",
            )
        )
        rows = []
        for row in orders.to_dicts():
            means, chance = map(_doubles, (row.pop("means"), row.pop("orders")))
            interval = vars(bootstrap_interval(means))
            p = permutation_p(_doubles(interval["mean"] - ROUNDED), chance)
            rows.append({**row, **interval, "texts": len(means), "p": float(p)})
        return table_of(_FAITHFUL, rows)

    def summary(self) -> Finding:
        """Return the finding: the best order, those no better than random ones, and its stability or the decision."""
        scores = self.faithful().filter(pl.col("explanation") != "random")
        if not len(scores):
            return Finding(_NONE)
        first = scores.partition_by(GROUP, maintain_order=True)[0]
        best = first.sort("mean", descending=True).row(0, named=True)
        chance = first.filter(pl.col("p") > BETTER)["explanation"]
        return Finding.of(
            _FINDING,
            **best,
            better=BETTER,
            chance=", ".join(chance) or None,
            decision=next((line.title for line in self.token_lines()), None),
        )

    def token_lines(self) -> list[TokenLine]:
        """Return the first texts as lines of tokens, each marked by what the decision loses without it."""
        texts = self.needed.partition_by("text", maintain_order=True)
        return [decision_line(text) for text in texts[:SHOWN]]


_CHANGES = (-0.5, -0.1, 0.1)
"""Changes of the probability, as shares of it, up to which a token has each of the marks but the last."""
_MARKS = (
    Mark("half of the probability or more is lost without it", "●", 0, True),
    Mark("a tenth or more is lost", "○", 0),
    Mark("less changes", "·", None),
    Mark("a tenth or more is gained", "△", 1),
)


def decision_line(needed: pl.DataFrame) -> TokenLine:
    """Return a text as a line of tokens, each marked by what the decision loses without it; rows of ``needed``."""
    tokens = []
    for row in needed.to_dicts():
        share = row["change"] / row["probability"]
        mark = _MARKS[bisect_left(_CHANGES, share)]
        value = f"{share:+.0%}" if mark.series is not None else ""
        tokens.append(MarkedToken(row["token"], mark, value + " ✓" * row["enough"]))
    least = needed.sort("change", maintain_order=True).row(0, named=True)
    enough = map(repr, needed.filter("enough")["token"])
    title = _DECISION.format(
        **least,
        left=least["probability"] + least["change"],
        needed=", ".join(enough) or "what always stays",
    )
    return TokenLine(title, tokens, [(mark, "") for mark in _MARKS])
