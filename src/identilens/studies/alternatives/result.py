"""The result of looking for alternatives: other weights with the same output, and what the model made of them."""

import re
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.labels import said
from identilens.charts.packing import BITS
from identilens.charts.viewer import MAP_BUDGET, TokenMap, map_characters
from identilens.charts.views import View
from identilens.measures.attention.intervals import POINT
from identilens.runs.matrices import MatrixKey
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, decimals, integers
from identilens.studies.head_views import axis_tokens
from identilens.studies.outcomes import scope
from identilens.studies.settings import UNITS

ANSWER = {
    **integers("query"),
    **dict.fromkeys(("outcome", "aim", "tolerance"), pl.String),
    **decimals("allowed", "effect", "predicted", "measured"),
    "same_top": pl.Boolean,
    **decimals("mass_before", "mass_after"),
    **integers("keys_before", "keys_after"),
}
"""Columns of alternatives of a row that keep an answer or a layer's output; missing where each head's output stays."""

_SAME_OUTPUT = """\
Other weights with the same output of the head, and the same sum of each row, were found in {free_maps} of \
{maps:attention map}; in these none is farther away than a total variation distance of {distance_bound:≤.2f} on \
average, with the output the same up to a rounding to bfloat16 {distance_bound_bfloat16:≤.2f} (1 − certain mass).
The farthest found are {far:.2f} away on average; put into the model, alternatives change the final hidden state by at \
most {hidden_change:.1e} of its size.
With other queries and keys of its size, a head computes weights that are {realisable:.2f} away on average.
"""
_SAME_ANSWER = """\
In none of {closed:row} of attention other weights were found that keep the outcome ({outcome}) to what is allowed.
In {rows:row} of attention, other weights ({aim}) have {mass_after:.1%} instead of {mass_before:.1%} of the attention \
on the chosen keys, at a mean total variation distance of {distance:.2f}.
Put into the model, together where they were found together, they change the outcome ({outcome}) by at most \
{measured:.1e} {unit}, as measured; {allowed:.1e} was allowed.
The most likely token or class stays the same with {same_top:.0%} of them.
"""
_TILES = """\
{found:,} | alternatives, each put back into the model
{far:.2f} | mean distance of the farthest alternatives found (total variation)
{distance_bound_bfloat16:≤.2f} | mean distance beyond which there is none, up to bfloat16's rounding
{hidden_change:.1e} | largest relative change of the final hidden state
{mass_before:.0%} → {mass_after:.0%} | of the attention on the chosen keys (by default the fewest with at least 90 % \
of a row)
{measured:.1e} | change of the outcome ({outcome}), measured ({unit})
"""
_MAPS = """\
Each alternative is a set of weights, non-negative, each row with the same sum as before. It replaced the head's \
weights, or those of all heads at once where these change together, and the whole model ran again. All changes shown \
were measured in this run.
Of each map only these rows are looked at, and change: {queries}.
The page has as many maps as fit; those of chosen rows (--queries) and of long texts are not saved.
{normed}
"""
_MOVED = pl.col("largest_total_variation") > POINT
_SAME = r"^(answer|layer)_([a-z]+)_(\d+)$", r"same \1, \2, row \3"
_WORDS = 2_000
"""Characters of a page that the words about a map and its tokens take."""

_NOTE = """\
Simplex nullity {simplex_nullity}. The alternative lies {mean_total_variation:.3f} away (mean total variation; largest \
row {largest_total_variation:.3f}).
No alternative lies beyond {distance_bound_bfloat16:≤.3f} up to bfloat16's rounding, {distance_bound:≤.3f} exactly.
Put into the model, it changes the final hidden state by {hidden_change:.1e} of its length.
The outcome ({outcome}) changes by {measured:.1e}; {allowed:.1e} was allowed.
Logits change by {logits_change:.1e}.
The loss changes by {loss_change:.1e}.
Note: {note}.
"""
_SHOWN = (
    "text",
    "layer",
    "head",
    "alternative",
    "mean_total_variation",
    "distance_bound_bfloat16",
    "distance_bound",
    "output_error",
    "hidden_change",
    "mass_before",
    "mass_after",
    "allowed",
    "measured",
    "same_top",
    "note",
)


@dataclass(frozen=True, kw_only=True)
class Alternatives(Result):
    """Alternatives of some heads on some texts, put back into the model.

    Attributes:
        table: One row for each text, head and alternative; ``n_query`` is the number of rows, those alone that
            ``queries`` names where the head's output stays.
        matrices: ``text{t}.layer{l}.head{h}.{kind}.{raw|effective|alternative_<name>}``, with
            ``queries_<name>`` and ``keys_<name>`` for those that queries and keys were found for.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.alternatives(lens, idl.examples()[0], layers=3, heads=5)
        >>> result.table["alternative"].to_list(), result.table["hidden_change"].max() < 1e-5
        (['sampled', 'far'], True)
    """

    analysis: ClassVar = "alternatives"
    title: ClassVar = "Alternatives to attention weights"
    schema: ClassVar = {
        "table": {
            **HEAD,
            "alternative": pl.String,
            **integers("n_query", "n_key", "d_k", "simplex_nullity"),
            **decimals("mean_total_variation", "largest_total_variation"),
            **decimals("distance_bound", "distance_bound_bfloat16", "output_error"),
            **integers("logit_rank", "dimension", "formula"),
            **decimals("hidden_change", "logits_change", "loss_change"),
            **ANSWER,
            "note": pl.String,
        },
    }
    words: ClassVar = {
        "mean_total_variation": "Distance: mean total variation distance from the weights",
        "distance_bound": "None beyond: no alternative is farther",
        "distance_bound_bfloat16": "None beyond, bfloat16: the same up to a rounding of the outputs",
        "output_error": "Relative change of the output",
        "hidden_change": "Relative change of the final hidden state",
    }
    views: ClassVar = {
        "alternatives": View(
            title="What else the attention could have been", text=_MAPS, maps="viewer_maps"
        ),
        "numbers": View(title="All alternatives in numbers", table="brief", listed=True),
    }

    @property
    def solved(self) -> pl.DataFrame:
        """The rows of the table whose alternative was found."""
        return self.table.drop_nulls("mean_total_variation")

    def brief(self) -> pl.DataFrame:
        """Return distances and changes by alternative, and what readers must know of those with a note."""
        return self.table.select(_SHOWN)

    def summary(self) -> Finding:
        """Return the finding: how many maps have alternatives, how far these go, and what the model makes of them."""
        rows = self.solved
        kept = rows.drop_nulls("outcome")
        if len(kept):
            # Of several aims the first.
            return self._of_answers(kept.filter(aim=kept["aim"][0]))
        moved = rows.filter(_MOVED)
        distances = moved.group_by("alternative").agg(pl.col("mean_total_variation").mean())
        numbers = (moved if len(moved) else rows).select(
            pl.col("distance_bound", "distance_bound_bfloat16").mean(),
            pl.col("hidden_change").max(),
        )
        return Finding.of(
            _SAME_OUTPUT,
            _TILES,
            **{"far": None, "realisable": None, **dict(distances.iter_rows())},
            **numbers.row(0, named=True),
            **scope(self.provenance),
            found=len(rows),
            maps=rows.n_unique(list(HEAD)),
            free_maps=moved.n_unique(list(HEAD)),
        )

    def _of_answers(self, kept: pl.DataFrame) -> Finding:
        """Return the finding of alternatives that keep the model's answer, or the output of a layer."""
        outcome, rows = kept["outcome"][0], kept.filter(_MOVED)
        numbers = rows.select(
            pl.col("mass_before", "mass_after", "same_top").mean(),
            pl.col("allowed", "measured", "hidden_change").max(),
            distance=pl.col("mean_total_variation").mean(),
        )
        return Finding.of(
            _SAME_ANSWER,
            _TILES,
            rows=len(rows) or None,
            closed=None if len(rows) else len(kept),
            aim=kept["aim"][0],
            found=len(kept),
            outcome="sum of the heads' outputs" if outcome == "layer" else outcome,
            unit=UNITS.get(outcome, "of its length"),
            **numbers.row(0, named=True),
            **scope(self.provenance),
        )

    def viewer_maps(self) -> list[TokenMap]:
        """Return raw, effective and alternative attention of the alternatives, as far as a page contains them."""
        left, maps = MAP_BUDGET, []
        for row in self.solved.iter_rows(named=True):
            # What does not fit is not read.
            left -= map_characters(3 * BITS * row["n_query"] * row["n_key"]) + _WORDS
            names = {
                "raw": "raw",
                "effective": "effective",
                "alternative": f"alternative_{row['alternative']}",
            }
            key = MatrixKey(row["text"], row["layer"], row["head"], row["kind"], "raw")
            keys = {title: str(key.named(name)) for title, name in names.items()}
            # Maps of long texts are not kept.
            if left < 0 or keys["raw"] not in self.matrices:
                continue
            choices = {name: row[name] for name in ("text", "kind", "layer", "head")}
            choices["alternative"] = re.sub(*_SAME, row["alternative"])
            maps.append(
                TokenMap(
                    choices,
                    {title: self.matrices[name] for title, name in keys.items()},
                    *axis_tokens(self.tokens.get(row["text"], {}), row),
                    " ".join(said(_NOTE, {**row, "note": row["note"] or None})),
                    {"alternative − raw": ("alternative", "raw")},
                    row["mean_total_variation"],
                )
            )
        return maps
