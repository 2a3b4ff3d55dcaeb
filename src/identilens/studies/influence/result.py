"""The result of removing heads and keys: what changes in the model's answer."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.kit import scatter
from identilens.charts.views import View
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, decimals
from identilens.studies.outcomes import INFLUENTIAL, RELATIVE_EFFECT
from identilens.studies.settings import UNITS

_HEAD = ["kind", "layer", "head"]

_FINDING = """\
The log probability of the answer, {log_probability:.3g}, changes by {log_change:+.3g} nats without head {answer_head} \
of {answer_kind} layer {answer_layer}: the lowest of all changes.
Without head {head} of {kind} layer {layer} the outcome ({outcome}, at the positions that count) changes \
by {effect:.3g} ({unit}; mean over {texts:text}), the most.
By at least {enough:.0%} of that: {influential} of {removed:head}, each removed alone.
Not removed, with an estimate to first order alone: {left:head}. In each text the largest by estimate are removed.
"""
_TILES = """\
{log_change:+.3g} | nats of the answer's log probability without head {answer_head} of {answer_kind} layer \
{answer_layer}
{effect:.3g} | {unit} without head {head} of {kind} layer {layer}
{influential} of {removed} | heads have at least {enough:.0%} of that effect
"""
_HEADS = """\
A head that is removed writes nothing, at any position; everything after it is computed by the model. Shares are of \
the largest effect among the heads that were removed.
The rank correlation of these effects with those of a head that writes its mean is {effect_of_mean:.2f}. Removal tests \
all that a head writes, the mean only how that varies from token to token.
The rank correlation of these effects with their estimates, to first order in the outputs of all heads, is \
{estimate:.2f}.
"""
_KEYS = """\
A key is hidden from one row of one head, whose other weights are scaled up to sum to 1, so that the change can be \
larger than without the head. A key that has all of a row's weight is left out.
"""


@dataclass(frozen=True, kw_only=True)
class Influence(Result):
    """What happens to the model's answer when a head, or one key of one row, is removed.

    Attributes:
        table: One row for each text and head. ``effect``: the change of the outcome when the head writes nothing;
            ``effect_of_mean``: when it writes the mean of its output over the text; ``estimate``: of ``effect``, to
            first order, and all that a head has that was not removed. Nats (prediction, the mean over its positions) or
            relative change (states). ``log_change``: of the log probability of a given answer, in nats; below 0 where
            the answer becomes less likely.
        answer_tokens: Of a given answer one row for each text, head and token of the answer: its
            ``log_probability`` in the model, its part of ``log_change``, and the row (``query``) that predicts it.
        hidden_keys: One row for each key with a weight in the rows that were named; ``effect`` and ``log_change`` when
            the key is hidden.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.influence(lens, "The cat sat on the mat.", layers=2)
        >>> found.heads().row(0)[:3]
        ('decoder', 2, 4)
    """

    analysis: ClassVar = "influence"
    title: ClassVar = "What happens to the model without a head"
    schema: ClassVar = {
        "table": {**HEAD, **decimals("effect", "effect_of_mean", "estimate", "log_change")},
        "answer_tokens": {
            **HEAD,
            "query": pl.Int64,
            **dict.fromkeys(("query_token", "token"), pl.String),
            **decimals("log_probability", "log_change"),
        },
        "hidden_keys": {
            **HEAD,
            "query": pl.Int64,
            "query_token": pl.String,
            "key": pl.Int64,
            "key_token": pl.String,
            **decimals("weight", "norm_share", "effect", "log_change"),
        },
    }
    words: ClassVar = {
        "effect": "Effect ({unit}): how much the outcome changes",
        "effect_of_mean": "Effect of mean ({unit}): the same when the head writes the mean of its output over the text",
        "estimate": "Estimate, to first order ({unit})",
        "log_change": "Change of the answer's log probability (nats)",
        "relative_effect": "Relative effect: the effect as a share of the largest",
    }
    views: ClassVar = {
        "effects": View(
            heat,
            ("head", "layer", "effect"),
            title="Effect of removing a head",
            text=_HEADS,
            table="heads",
            listed=True,
        ),
        "keys": View(
            scatter,
            ("weight", "effect"),
            title="Weight of a key against the effect of hiding it",
            text=_KEYS,
            table="keys_by_effect",
            also=("layer", "head", "query_token", "key_token", "norm_share"),
            listed=True,
        ),
    }

    answer_tokens: pl.DataFrame
    hidden_keys: pl.DataFrame

    def heads(self) -> pl.DataFrame:
        """Return the means of each head over texts: first what a given answer needs most, or what has most effect."""
        means = self.table.group_by(_HEAD).agg(pl.exclude("text").mean())
        return means.with_columns(RELATIVE_EFFECT).sort(
            "log_change", -pl.col("effect"), *_HEAD, nulls_last=True
        )

    def keys_by_effect(self) -> pl.DataFrame:
        """Return the hidden keys in the order of `heads`."""
        keys = self.hidden_keys.drop_nulls("effect")
        return keys.sort("log_change", -pl.col("effect"), maintain_order=True)

    def summary(self) -> Finding:
        """Return the head of the largest effect, how many come near it, and what a given answer needs most."""
        heads, outcome = self.heads(), self.provenance["settings"]["outcome"]
        removed = heads.drop_nulls("effect")
        needed = removed.select("log_change", pl.col(_HEAD).name.prefix("answer_"))
        largest = removed.sort("effect").select(_HEAD).row(-1, named=True)
        enough, left = INFLUENTIAL[outcome], heads["effect"].null_count()
        near = (removed["relative_effect"] >= enough).sum()
        ranks = pl.corr(pl.col("effect_of_mean", "estimate"), "effect", method="spearman")
        known = self.answer_tokens["log_probability"].sum() / self.table["effect"].count()
        return Finding.of(
            _FINDING,
            _TILES,
            **largest,
            **needed.row(0, named=True),
            effect=removed["effect"].max(),
            outcome=outcome,
            unit=UNITS[outcome],
            texts=self.table.filter(**largest)["effect"].count(),
            removed=len(removed),
            left=left or None,
            enough=enough,
            influential=near if len(heads) > 1 else None,
            log_probability=known or None,
            **(removed.select(ranks).row(0, named=True) if len(removed) > 2 else {}),
        )
