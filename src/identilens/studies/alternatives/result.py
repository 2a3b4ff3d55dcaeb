"""The result of looking for alternatives: other weights with the same output, and what the model made of them."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import AnyChart
from identilens.charts.page import Section
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, counted, some_of
from identilens.studies.alternatives import views
from identilens.studies.outcomes import normed_heads

_ALTERNATIVE = {**HEAD, "alternative": pl.String}

ANSWER = {
    "query": pl.Int64,
    "outcome": pl.String,
    "aim": pl.String,
    "tolerance": pl.String,
    "allowed": pl.Float64,
    "effect": pl.Float64,
    "predicted": pl.Float64,
    "measured": pl.Float64,
    "same_top": pl.Boolean,
    "mass_before": pl.Float64,
    "mass_after": pl.Float64,
    "keys_before": pl.Int64,
    "keys_after": pl.Int64,
}
"""Columns of alternatives of a row that keep an answer or a layer's output; missing where each head's output stays."""


@dataclass(frozen=True, kw_only=True)
class Alternatives(Result):
    """Alternatives of some heads on some texts, put back into the model.

    Attributes:
        table: One row for each text, head and alternative; ``n_query`` is the number of rows, those alone that
            ``queries`` names where the head's output stays.
        changes: What each alternative, put back into the model, changed in each hidden state, the logits and the loss.
        matrices: ``text{t}.layer{l}.head{h}.{kind}.{raw|effective|alternative_<name>}``, with
            ``queries_<name>`` and ``keys_<name>`` for those that queries and keys were found for.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.alternatives(lens, idl.examples()[0], layers=3, heads=5)
        >>> result.changes.columns
        ['text', 'layer', 'head', 'kind', 'alternative', 'state', 'state_layer', 'largest_change',
        'relative_change']
    """

    analysis: ClassVar = "alternatives"
    title: ClassVar = "Alternatives to attention weights"
    schema: ClassVar = {
        "table": {
            **_ALTERNATIVE,
            "n_query": pl.Int64,
            "n_key": pl.Int64,
            "d_k": pl.Int64,
            "simplex_nullity": pl.Int64,
            "mean_total_variation": pl.Float64,
            "largest_total_variation": pl.Float64,
            "distance_bound": pl.Float64,
            "output_error": pl.Float64,
            "logit_rank": pl.Int64,
            "dimension": pl.Int64,
            "formula": pl.Int64,
            "hidden_change": pl.Float64,
            "logits_change": pl.Float64,
            "loss_change": pl.Float64,
            **ANSWER,
            "note": pl.String,
        },
        "changes": {
            **_ALTERNATIVE,
            "state": pl.String,
            "state_layer": pl.Int64,
            "largest_change": pl.Float64,
            "relative_change": pl.Float64,
        },
    }
    keys: ClassVar = {"table": [*_ALTERNATIVE], "changes": [*_ALTERNATIVE, "state", "state_layer"]}

    changes: pl.DataFrame

    @property
    def found(self) -> pl.DataFrame:
        """The rows of the table whose alternative was found."""
        return self.table.drop_nulls("mean_total_variation")

    def summary(self) -> Finding:
        """Return the finding: how many maps have alternatives, how far these go, and what the model makes of them."""
        rows, head = self.found, list(HEAD)
        if len(answers := rows.drop_nulls("outcome")):
            return _of_answers(answers)
        free = rows.filter(pl.col("simplex_nullity") > 0)
        maps, free_maps = (one.select(head).n_unique() for one in (rows, free))
        distances = rows.group_by("alternative").agg(pl.col("mean_total_variation").mean())
        away = dict(distances.iter_rows())
        numbers = rows.select(
            pl.col("distance_bound").mean(), pl.col("output_error", "hidden_change").max()
        ).row(0, named=True)
        numbers = {"distance": away.get("far"), **numbers}
        lines = [
            f"Other weights with the same output of the head, and the same sum of each row, exist in "
            f"{some_of(free_maps, maps, 'attention map')}.",
            *normed_heads(self.provenance["model"]),
        ]
        if asked := self.provenance["settings"].get("queries"):
            rows_alone = "Of each map only these rows are looked at, and change"
            lines.insert(0, f"{rows_alone}: {', '.join(map(str, asked))}.")
        if free_maps and "far" in away:
            lines.append(
                "The farthest found are a total variation distance of {distance:.2f} away on average, none is farther "
                "than {distance_bound:.2f} on average (1 − certain mass), and alternatives put into the model change "
                "the final hidden state by at most {hidden_change:.1e} of its size.".format(**numbers)
            )
        if free_maps and "parameters" in away:
            lines.append(
                "With other query and key parameters, the model itself computes weights that are "
                f"{away['parameters']:.2f} away on average, in small steps up to the distance asked for (--distance)."
            )
        ends = dict.fromkeys(
            _written(numbers[one], ".2f") for one in ("distance", "distance_bound")
        )
        headline = (
            (f"{len(rows):,}", "alternatives, each put back into the model"),
            (
                " to ".join(ends),
                "mean distance of the farthest alternative (total variation): the farthest found, and a proven limit",
            ),
            (
                _written(numbers["output_error"], ".1e"),
                "largest relative change of a head's output",
            ),
            (
                _written(numbers["hidden_change"], ".1e"),
                "largest relative change of the final hidden state",
            ),
        )
        known = {"maps": maps, "free_maps": free_maps, "found": len(rows)}
        return Finding("\n".join(lines), {**known, **numbers}, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return distances and changes by alternative, and what readers must know of those with a note."""
        names = {
            "mean_total_variation": "distance",
            "distance_bound": "no farther than",
            "output_error": "output changes",
            "hidden_change": "states change",
        }
        if self._keep_answers:
            names = {"mean_total_variation": "distance of the row"}
            names |= {name: name.replace("_", " ") for name in (*ANSWER, "hidden_change")}
            names = {name: names[name] for name in _SHOWN}
        shown = ["layer", "head", "alternative", *names]
        if self.table["text"].n_unique() > 1:
            shown.insert(0, "text")
        notes = (
            self.table.filter(pl.col("note") != "")
            .select("alternative", "note")
            .unique(maintain_order=True)
        )
        title = "Total variation distance from the weights, and what changes"
        frames = {title: self.table.select(shown).rename(names)}
        return frames | ({"Notes": notes} if len(notes) else {})

    def charts(self) -> dict[str, AnyChart]:
        """Return distances, changes by distance and by hidden state, and ``maps_...`` of the farthest alternatives."""
        return {
            "distances": views.distances(self.found),
            "distance_and_change": views.distance_and_change(self.found),
            "changes_by_state": views.changes_by_state(self.changes),
            **views.printed_maps(self.found, self.matrices, self.tokens),
        }

    def sections(self) -> list[Section]:
        """Return the maps side by side, what they changed in the model, and all alternatives in numbers."""
        maps = views.viewer_maps(self.found, self.matrices, self.tokens)
        charts = [views.changes_of_head(self.found, self.changes)] if len(self.changes) else []
        note = (
            f"This page contains {len(maps)} of {len(self.found)} alternatives: of large maps not all are drawn, and "
            "maps of chosen rows (--queries) are not saved. In Python, Alternatives.load(folder).matrices has all that "
            "were saved."
        )
        left_out = note if len(maps) < len(self.found) else ""
        about = [_CONFIRMED if self._keep_answers else _PUT_BACK]
        shown = []
        if maps:
            shown = [Section("alternatives", _TITLE, about, maps=maps, note=left_out)]
            about, left_out = [], ""
        title = "What the alternatives changed in the model"
        return [
            *shown,
            Section("changes", title, [*about, _CHANGES], charts, note=left_out),
            Section(
                "all",
                "All alternatives",
                charts=["distances", "distance_and_change", "changes_by_state"],
            ),
            Section("numbers", "All alternatives in numbers", frame=views.in_words(self.table)),
        ]

    @property
    def _keep_answers(self) -> bool:
        return self.table["outcome"].is_not_null().any()


def _of_answers(rows: pl.DataFrame) -> Finding:
    """Return the finding of alternatives that keep the model's answer, or the output of a layer."""
    numbers = rows.select(
        pl.col("mass_before", "mass_after", "same_top").mean(),
        pl.col("allowed", "measured", "predicted", "output_error", "hidden_change").max(),
        distance=pl.col("mean_total_variation").mean(),
    ).row(0, named=True)
    what, unit, beside = _KEPT[rows["outcome"][0]]
    before, after = (100 * numbers[name] for name in ("mass_before", "mass_after"))
    text = (
        f"In {counted(len(rows), 'row')} of attention, other weights have {after:.1f} % instead of {before:.1f} % of "
        f"the attention on the chosen keys, at a mean total variation distance of {numbers['distance']:.2f}.\n"
        f"Put into the model, together where they were found together, they change the {what} by at most "
        f"{numbers['measured']:.1e} {unit}, as measured; {numbers['allowed']:.1e} was allowed.\n"
        + beside.format(**numbers, same=some_of(rows["same_top"].sum() or 0, len(rows), "row"))
    )
    chosen = (
        "of the attention on the chosen keys (by default the fewest with at least 90 % of a row)"
    )
    headline = (
        (f"{before:.0f} % → {after:.0f} %", chosen),
        (f"{numbers['measured']:.1e}", f"change of the {what}, measured ({unit})"),
    )
    return Finding(text, {"rows": len(rows), **numbers}, headline)


def _written(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


_TITLE = "What else the attention could have been"
_PUT_BACK = (
    "Each alternative is a set of weights (non-negative, each row with the same sum as before) with the same head "
    "output. It replaced the head's weights, and the whole model ran again. All changes shown were measured in this "
    "run."
)
_CONFIRMED = (
    "Each alternative is a row of weights (non-negative, with the same sum as before) that does what --aim asks: has "
    "little on the chosen keys, is far away, or is sparse. It replaced the row, or the rows of all heads at once where "
    "these change together, and the model ran again: its answer, or the sum of the outputs of a layer's heads, changes "
    "by no more than was allowed. The head's own output does change."
)
_SHOWN = ("mean_total_variation", "mass_before", "mass_after", "allowed", "measured", "same_top")
_CHANGES = (
    "Largest change of a token's hidden state as a share of its length, after each layer. Rounding alone changes it "
    "by about 1e-6 in single precision, and by about 1e-2 in half precision."
)
_KEPT = {
    "prediction": (
        "prediction",
        "nats",
        "The most likely token or class stays the same with {same}.",
    ),
    "states": (
        "final hidden states",
        "of their size",
        "The first order, on which nothing rests, predicts {predicted:.1e}.",
    ),
    "layer": (
        "sum of the heads' outputs",
        "of its length",
        "The output of a head by itself changes by up to {output_error:.1e}, a final hidden state by at most "
        "{hidden_change:.1e} of its size.",
    ),
}
"""Of each outcome: what stays, the unit of its change, and what else a reader must know."""
