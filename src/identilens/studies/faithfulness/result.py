"""The result of testing explanations of attention rows: faithfulness, determinacy, and the control."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, ClassVar

import altair as alt
import polars as pl
import torch

from identilens.charts.encoding import AnyChart, on_field
from identilens.charts.kit import Charts, choose_present, intervals, scatter
from identilens.charts.page import Section
from identilens.measures.explanations.agreement import bootstrap_interval
from identilens.runs.result import Finding, Result
from identilens.runs.tables import (
    HEAD,
    Columns,
    Row,
    Tables,
    counted,
    decimals,
    integers,
    percent,
    table_of,
)

MEAN: Columns = {"mean": pl.Float64, "low": pl.Float64, "high": pl.Float64, "texts": pl.Int64}


def means(table: pl.DataFrame, by: Sequence[str], measure: str) -> pl.DataFrame:
    """Return the mean of a measure over texts for each group, with its 95 % bootstrap interval.

    Rows of one text are averaged first. Rows without the measure are left out. One text has no interval: NaN.
    """
    texts = (
        table.drop_nulls(measure)
        .group_by(*by, "text", maintain_order=True)
        .agg(pl.col(measure).mean())
    )
    groups = texts.group_by(list(by), maintain_order=True)
    rows = [_interval(dict(zip(by, group, strict=True)), held[measure]) for group, held in groups]
    return table_of({**{name: table.schema[name] for name in by}, **MEAN}, rows)


def differences(
    table: pl.DataFrame, by: Sequence[str], measure: str, reference: str
) -> pl.DataFrame:
    """Return the mean difference of each explanation to a reference on the same texts, with its interval."""
    keys = [*by, "text"]
    texts = (
        table.drop_nulls(measure)
        .group_by(*keys, "explanation", maintain_order=True)
        .agg(pl.col(measure).mean())
    )
    base = texts.filter(explanation=reference).select(*keys, base=measure)
    paired = texts.filter(pl.col("explanation") != reference).join(
        base, on=keys, maintain_order="left"
    )
    moved = paired.with_columns(pl.col(measure) - pl.col("base"))
    return means(moved, [*by, "explanation"], measure)


def on_axes(faithful: pl.DataFrame, stable: pl.DataFrame) -> pl.DataFrame:
    """Return each explanation's mean NAOPC in one table and mean agreement in the other, with their intervals."""
    ends = {"mean": "", "low": "_low", "high": "_high"}
    axes = [
        means(one, ["explanation"], measure).select(
            "explanation", *(pl.col(name).alias(f"{axis}{end}") for name, end in ends.items())
        )
        for one, measure, axis in ((faithful, "naopc", "faithful"), (stable, "agreement", "stable"))
    ]
    return axes[0].join(axes[1], on="explanation", how="left", maintain_order="left")


def left_out(table: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the number of rows without correlation or NAOPC: the noise floor leaves no order of their effects."""
    tested = table.filter(explanation="random").group_by(list(by), maintain_order=True)
    measures = [
        pl.col(name).null_count().cast(pl.Int64).alias(f"no_{name}")
        for name in ("correlation", "naopc")
    ]
    return tested.agg(pl.len().cast(pl.Int64).alias("rows"), *measures)


def in_words(mean: float, low: float, high: float, form: str = ".2f") -> str:
    """Return a mean with its interval, if there is one."""
    return f"{mean:{form}}" + ("" if isnan(low) else f" [{low:{form}}, {high:{form}}]")


def _interval(at: Row, values: pl.Series) -> Row:
    found = bootstrap_interval(torch.tensor(values.to_list(), dtype=torch.float64))
    return {**at, "mean": found.mean, "low": found.low, "high": found.high, "texts": len(values)}


def finding(
    plane: pl.DataFrame, tested: Mapping[str, int], controls: pl.DataFrame, failed: int
) -> Finding:
    """Return the most faithful explanation, the least stable, and how the control ended."""
    rows = tested["rows"]
    if not rows:
        return Finding(
            "No row was tested: every row of these texts sees a single key.", {"rows": 0}
        )
    named = (
        plane.filter(pl.col("explanation") != "random")
        .drop_nulls("faithful")
        .sort("faithful", descending=True)
    )
    if not len(named):
        return Finding(
            f"In {counted(rows, 'row')}, no order of keys is better than another: removing keys changes the model by "
            "no more than rounding does (the noise floor).",
            {"rows": rows},
        )
    best = named.row(0, named=True)
    first = ", ".join(named.filter(pl.col("faithful") == best["faithful"])["explanation"])
    lines = [
        f"Most faithful on these texts: {first}. By how much removing keys changes the model, on a scale from worst "
        f"(0) to best (1) order of keys found, its order is at {_range(best, 'faithful')} ({counted(rows, 'row')} of "
        f"{counted(tested['texts'], 'text')}). It takes ten texts, and a lead whose interval excludes 0, to name one."
    ]
    if tested["left_out"]:
        lines.append(
            f"{tested['left_out']:,} of {tested['tests']:,} tests are left out: there the best and the worst order "
            "differ by no more than rounding does (the noise floor)."
        )
    numbers: dict[str, float | int | None] = {
        "rows": rows,
        "faithful": best["faithful"],
        "left_out": tested["left_out"],
    }
    reached = f"from the worst order of keys (0) to the best (1): {first}"
    headline = [(f"{best['faithful']:.2f}", reached)]
    if not len(controls):
        lines.append(
            "No row has other weights with the same output, so that no explanation can change with them. That is usual "
            "for texts of no more tokens than a head's values have dimensions: take longer ones."
        )
        return Finding("\n".join(lines), numbers, headline)
    worst = named.sort("stable", nulls_last=True).row(0, named=True)
    over = float(controls.select((pl.col("change") / pl.col("floor").clip(1e-300)).max()).item())
    lines += [
        f"Computed from other weights with the same head output, {best['explanation']} keeps its order with a rank "
        f"correlation of {_range(best, 'stable')}; the lowest is {worst['explanation']} with "
        f"{_range(worst, 'stable')}." + _without_order(named),
        "Control: put into the model, these weights may change it by rounding only. The largest change is "
        f"{over:.1f} times what rounding alone changes (the noise floor); {failed:,} of {len(controls):,} controls are "
        f"above the limit of {ALLOWED:.0f} times.",
    ]
    numbers |= {"stable": best["stable"], "control": over, "failed_controls": failed}
    if best["stable"] is not None:
        agreement = "rank correlation of its order with that from other weights, same output"
        headline.append((f"{best['stable']:.2f}", agreement))
    headline.append((f"{over:.1f}", "times the noise floor: the largest change in the control"))
    return Finding("\n".join(lines), numbers, headline)


def _without_order(named: pl.DataFrame) -> str:
    """Return which explanations have no order in some rows, so that their agreement rests on fewer."""
    some = named.filter(pl.col("no_order") > 0).sort("no_order", descending=True)
    shares = [
        f"{row['explanation']} in {percent(row['no_order'])} of the rows"
        for row in some.iter_rows(named=True)
    ]
    return f" Left out where all of their scores are equal: {', '.join(shares)}." if shares else ""


def _range(row: Row, axis: str) -> str:
    if row[axis] is None:
        return "an unknown value (it has no order in any row)"
    return in_words(row[axis], row[f"{axis}_low"], row[f"{axis}_high"])


_MEASURED = {
    "floor": pl.Float64,
    "above_floor": pl.Int64,
    **decimals("correlation", "aopc", "naopc"),
}
_ROW = {**HEAD, "query": pl.Int64}

ALLOWED = 4.0
"""A change by an alternative passes the control up to so many noise floors."""


@dataclass(frozen=True, kw_only=True)
class Faithfulness(Result):
    """Faithfulness of explanations of attention rows, and their stability over alternatives.

    Attributes:
        table: One row for each attention row, intervention, outcome and explanation: rank correlation with the effects
            of single keys, area over the perturbation curve (``aopc``), and its place between the worst and the best
            order (``naopc``), null without effects apart by more than the noise ``floor``; keys with effects above it.
        determinacy: One row for each attention row, kind of alternative and explanation: rank agreement of the
            explanation with itself over alternatives, null without an order, and their total variation distance.
        states: One row for each explained hidden state and explanation by input tokens, with the same measures, and
            ``agreement`` with itself when a head has other W_Q and W_K.
        controls: One row for each map, kind of alternative and outcome: the largest change when alternatives are put
            back, and the noise floor.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> found = idl.faithfulness(lens, idl.examples()[0], layers=5, rows=1, groups=(1, 2), interventions="zero")
        >>> found.plane().columns
        ['explanation', 'faithful', 'faithful_low', 'faithful_high', 'stable', 'stable_low', 'stable_high', 'no_order']
    """

    analysis: ClassVar = "faithfulness"
    title: ClassVar = "Are explanations of attention faithful, and stable?"
    schema: ClassVar = {
        "table": {
            **_ROW,
            "n_key": pl.Int64,
            "intervention": pl.String,
            "outcome": pl.String,
            "explanation": pl.String,
            **_MEASURED,
        },
        "determinacy": {
            **_ROW,
            "alternative": pl.String,
            "explanation": pl.String,
            "total_variation": pl.Float64,
            "agreement": pl.Float64,
        },
        "controls": {
            **HEAD,
            "alternative": pl.String,
            "outcome": pl.String,
            "change": pl.Float64,
            "floor": pl.Float64,
        },
        "states": {
            **integers("text", "position", "n_input"),
            "outcome": pl.String,
            "explanation": pl.String,
            **_MEASURED,
            "agreement": pl.Float64,
        },
    }

    determinacy: pl.DataFrame
    controls: pl.DataFrame
    states: pl.DataFrame

    def faithful(self, measure: str = "naopc") -> pl.DataFrame:
        """Return the mean of ``naopc``, ``correlation`` or ``aopc`` by intervention, outcome and explanation."""
        return means(self.table, ["intervention", "outcome", "explanation"], measure)

    def stable(self) -> pl.DataFrame:
        """Return the mean agreement by kind of alternative and explanation, with bootstrap intervals over texts.

        Rows in which the explanation has no order are left out; ``no_order`` is their share.
        """
        by = ["alternative", "explanation"]
        return means(self.determinacy, by, "agreement").join(self._no_order(*by), on=by, how="left")

    def against(self, reference: str = "raw", measure: str = "naopc") -> pl.DataFrame:
        """Return the mean difference of each explanation to a reference on the same texts, with its interval."""
        return differences(self.table, ["intervention", "outcome"], measure, reference)

    def plane(self) -> pl.DataFrame:
        """Return both axes by explanation: mean NAOPC over interventions (hidden states), and mean agreement.

        ``no_order`` is the share of rows in which the explanation has no order, which are left out of its agreement.
        """
        axes = on_axes(self.table.filter(outcome="hidden"), self.determinacy)
        return axes.join(
            self._no_order("explanation"), on="explanation", how="left", maintain_order="left"
        )

    def _no_order(self, *by: str) -> pl.DataFrame:
        share = pl.col("agreement").is_null().mean().alias("no_order")
        return self.determinacy.group_by(by, maintain_order=True).agg(share)

    def states_plane(self) -> pl.DataFrame:
        """Return both axes of the explanations of final hidden states by input tokens."""
        return on_axes(self.states, self.states)

    def left_out(self) -> pl.DataFrame:
        """Return how many rows have no correlation and no NAOPC, as their effects lie within the noise floor."""
        states = self.states.with_columns(intervention=pl.lit("tokens replaced"))
        return pl.concat(
            [left_out(one, ["intervention", "outcome"]) for one in (self.table, states)]
        )

    def summary(self) -> Finding:
        """Return the finding: the most faithful and the most stable explanation, and the control."""
        tested = self.table.select(
            pl.struct(*_ROW).n_unique().alias("rows"), pl.col("text").n_unique().alias("texts")
        )
        counts = tested.row(0, named=True) | self.left_out().sum().select(
            tests="rows", left_out="no_naopc"
        ).row(0, named=True)
        return finding(self.plane(), counts, self.controls, len(self.failed_controls()))

    def failed_controls(self) -> pl.DataFrame:
        """Return the rows of the control in which an alternative changed more than rounding can explain."""
        return self.controls.filter(pl.col("change") > ALLOWED * pl.col("floor"))

    def overview(self) -> Tables:
        """Return both axes with intervals, the mean rank correlations, and how many rows the noise floor leaves out."""
        singles = self.faithful("correlation")
        found = {
            "Faithful (NAOPC) and stable (agreement)": self.plane(),
            **{
                f"Rank correlation with effects of single keys, removed by: {how}": of.pivot(
                    "outcome", index="explanation", values="mean"
                )
                for (how,), of in singles.group_by("intervention", maintain_order=True)
            },
            "Rows without a correlation or NAOPC: their effects lie within the noise floor": self.left_out(),
        }
        return found | (
            {"Final states by input tokens": self.states_plane()} if len(self.states) else {}
        )

    def charts(self) -> Charts:
        """Return ``plane`` (faithful by stable), ``faithful``, ``correlation`` and ``stable``, each if it has data."""
        choices = {"outcome": "Change of", "intervention": "Removed by"}
        area, single = (
            "Place between worst and best order (NAOPC)",
            "Rank correlation with single effects",
        )
        itself, other = "Agreement with itself over alternatives", {"alternative": "Alternatives"}
        means = {
            "faithful": (self.faithful(), area, choices),
            "correlation": (self.faithful("correlation"), single, choices),
            "stable": (self.stable(), itself, other),
        }
        planes = {"plane": self.plane(), "states_plane": self.states_plane()}
        found = {name: plane(of) for name, of in planes.items() if of["stable"].count()}
        return found | {name: by_explanation(*of) for name, of in means.items() if len(of[0])}

    def sections(self) -> list[Section]:
        """Return the plane, each axis with its numbers, differences to the raw weights, and the control."""
        drawn = self.charts().keys()
        states = ["states_plane"] if "states_plane" in drawn else []
        found = [
            Section("plane", "Two questions, one plane", _PLANE, ["plane"], self.plane()),
            Section(
                "faithful", "Faithful: removing keys", _FAITHFUL, ["faithful"], self.faithful()
            ),
            Section(
                "correlation", "Single keys", _SINGLE, ["correlation"], self.faithful("correlation")
            ),
            Section("against", "Compared with the raw weights", _AGAINST, frame=self.against()),
            Section(
                "floor", "Left out: effects within the noise floor", _FLOOR, frame=self.left_out()
            ),
            Section("states", "Final states by input tokens", _STATES, states, self.states_plane()),
            Section("stable", "Stable: other weights", _STABLE, ["stable"], self.stable()),
            Section("control", "Control: nothing else changes", _CONTROL, frame=self.controls),
        ]
        # A table without rows, or a chart without data, says nothing.
        return [one for one in found if len(one.frame) and drawn >= set(one.charts)]  # pyright: ignore[reportArgumentType] each has one


_PLANE = (
    "The vertical axis shows how faithful an explanation is: does its order follow what removing keys does to the "
    "model? The horizontal axis shows how stable it is: is its order the same for drawn alternatives, weights with "
    "which the model computes the same output? Stability is measured on these draws and proves nothing about other "
    "alternatives; intervals of weights (identilens certify) hold for all. An explanation can be faithful and not "
    "stable, or stable and not faithful. Lines are 95 % bootstrap intervals over texts.",
)
_FAITHFUL = (
    "Keys are removed in each explanation's order, in growing groups. The mean change of the model is given on a "
    "scale from the worst order (0) to the best (1) that a beam search finds for the same row. A random order is the "
    "control.",
)
_SINGLE = (
    "Each key is removed alone. Shown is the rank correlation of these effects with the explanation's scores; "
    "nearly equal values count as ties.",
)
_AGAINST = (
    "Mean difference to raw weights on the same texts (NAOPC), with 95 % bootstrap intervals over texts. They are not "
    "corrected for the number of comparisons. With one text there is no interval.",
)
_FLOOR = (
    "The noise floor of a map is the largest change when the rows' outputs are only rounded differently. Effects that "
    "differ by no more are equal. A row whose effects are all equal has no rank correlation, and a row whose best and "
    "worst order differ by no more has no NAOPC: these are left out of the means.",
)
_STABLE = (
    "The same explanation is computed from other weights of the row with the same head output: weights drawn evenly "
    "from all of them (drawn), and weights that the model itself computes with other W_Q and W_K (parameters). Shown "
    "is the rank correlation with the explanation of the model's own weights; it is 1 for an explanation that depends "
    "on the output alone. Rows in which all scores of an explanation are equal have no order and are left out; "
    "no_order is their share.",
)
_STATES = (
    "The same two questions for a final hidden state and the tokens of the text. In each explanation's order, tokens "
    "are replaced by the mean input. Stable: the explanation is computed again when one head has other W_Q and "
    "W_K, with which every hidden state is the same.",
)
_CONTROL = (
    "Each alternative is put into the model. As the head's output is the same, nothing may change beyond rounding. The "
    "floor is the largest change when the rows' outputs are only rounded differently.",
)


def plane(means: pl.DataFrame) -> AnyChart:
    """Return each explanation by its agreement over alternatives and its NAOPC, with intervals both ways."""
    held = means.drop_nulls("stable")
    ends = ("faithful_low", "faithful_high", "stable_low", "stable_high")
    known = held["faithful_low"].is_finite().any()
    chart: Any = scatter(
        held,
        "stable",
        "faithful",
        "explanation",
        size=70,
        span=ends[:2] if known else None,
        also=ends,
        x_title="Stable: agreement with itself over alternatives",
        y_title="Faithful: NAOPC",
        color_title="Explanation",
        title="Faithful by stable",
    )
    if not known:
        return chart
    wide = chart.layer[0].copy()
    wide.encoding.y, wide.encoding.y2 = on_field(wide.encoding.y, "faithful"), alt.Undefined
    chart.layer = [wide.encode(x=on_field(wide.encoding.x, ends[2]), x2=ends[3]), *chart.layer]
    return chart


def by_explanation(means: pl.DataFrame, title: str, choices: Mapping[str, str]) -> AnyChart:
    """Return a measure of each explanation with its interval; the values of some columns are chosen."""
    chart = intervals(
        means.select(*choices, "explanation", "mean", "low", "high"),
        "explanation",
        "low",
        "high",
        "mean",
        x_title=title,
        title=title,
    )
    for column, label in choices.items():
        chart = choose_present(chart, means, column, label)
    return chart
