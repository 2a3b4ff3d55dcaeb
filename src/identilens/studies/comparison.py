"""Two results of one study beside each other: texts, models or checkpoints, measure by measure, with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any, ClassVar

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import Charts, choose, scatter
from identilens.charts.page import Section
from identilens.errors import InputError
from identilens.runs.provenance import Identity, provenance
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, Tables, decimals
from identilens.studies.head_views import choose_kind

_PLACES = ("kind", "layer", "head", "alternative", "state", "setting")
_TEXT = "text"
_SHOWN = 6
"""Measures that the finding names."""

_LEFT_OUT = (
    "reconstruction_error",
    "certain_mass_error",
    "weight",
    "minimum_norm",
    "norm_share",
    "contribution",
)
"""Measures of rounding and of errors, and those whose mean over a row is 1 over its keys whatever the model does."""

_FIRST = "certain_mass_bfloat16"
"""The measure that the finding always names where both results have it."""

ROUNDING = 1e-9
"""Differences up to this, absolutely or as a share of the larger mean, are rounding."""

LENGTH_CHANGE = 0.1
"""Change of the mean number of keys, as a share, from which on the finding warns."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """What differs between two results of one study.

    Attributes:
        table: One row for each measure, over all places that both results have: means of a and b (the first and the
            second result), their difference b − a, its standard error over texts (paired where these are the same),
            and the spread over places.
        places: The same for each place (kind, layer, head) and measure.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> first, second = (idl.audit(lens, text, layers=3, certain_rows=0, examples=0) for text in idl.examples()[:2])
        >>> comparison = idl.compare(first, second)
        >>> comparison.table.columns
        ['measure', 'a', 'b', 'difference', 'error', 'spread', 'places']
    """

    analysis: ClassVar = "compare"
    title: ClassVar = "Comparison of two results"
    schema: ClassVar = {
        "table": {
            "measure": pl.String,
            **decimals("a", "b", "difference", "error", "spread"),
            "places": pl.Int64,
        },
        "places": {
            "kind": pl.String,
            "layer": pl.Int64,
            "head": pl.Int64,
            "measure": pl.String,
            **decimals("a", "b", "difference", "error"),
        },
    }

    places: pl.DataFrame

    @property
    def names(self) -> tuple[str, str]:
        """What the two results are called: their models where these differ, else the first and the second run."""
        models = tuple(self.provenance["settings"]["models"])
        return models if models[0] != models[1] else ("first run", "second run")

    @property
    def _change(self) -> str:
        return f"{self.names[1]} minus {self.names[0]}"

    def _named_columns(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a table for readers: with the names of both results, and 0 for what is only rounding."""
        # 0.0 is added so that -0.0 is shown as 0, too.
        shown = frame.with_columns(pl.col("^(difference|error|spread)$").round(9) + 0.0)
        return shown.rename(dict(zip("ab", self.names, strict=True)))

    def subject(self) -> str:
        """Return what was compared."""
        settings, (first, second) = self.provenance["settings"], self.names
        return (
            f"Two runs of {settings['study']}: {first}, {settings['a']}; {second}, {settings['b']}"
        )

    def summary(self) -> Finding:
        """Return certain mass, and the measures that differ most, in standard errors of their differences."""
        larger = pl.max_horizontal(pl.col("a").abs(), pl.col("b").abs())
        known = self.table.filter(pl.col("difference").is_finite()).with_columns(
            equal=pl.col("difference").abs() <= ROUNDING * larger.clip(lower_bound=1),
            size=pl.when(pl.col("error") > 0).then((pl.col("difference") / pl.col("error")).abs()),
            share=pl.col("difference").abs() / larger,
            first=pl.col("measure") == _FIRST,
        )
        order = ["first", "size", "share"]
        apart = known.filter(~pl.col("equal") | pl.col("first")).sort(
            order, descending=True, nulls_last=True
        )
        shown = list(apart.head(_SHOWN).iter_rows(named=True))
        lines = [self.subject() + "."]
        if different := self.provenance["settings"].get("different"):
            lines.append(f"Their settings differ: {', '.join(different)}.")
        lengths = self.provenance["settings"].get("mean_keys")
        if lengths is not None and abs(lengths[0] - lengths[1]) > LENGTH_CHANGE * max(lengths):
            lines.append(
                f"The texts differ in length (on average {lengths[0]:.0f} and {lengths[1]:.0f} keys): nullity, null "
                "share, certain mass and norm shares change with length alone. Compare texts of one length."
            )
        lines += [_sentence(row, self.names) for row in shown]
        if any(_UNSURE in line for line in lines):
            lines.append(
                "Within two standard errors, the choice of texts alone may make the difference."
            )
        if equal := known.filter(pl.col("equal") & ~pl.col("first"))["measure"].to_list():
            lines.append(f"Means equal up to rounding: {', '.join(map(_named, equal))}.")
        numbers = {row["measure"]: row["difference"] for row in known.iter_rows(named=True)}
        headline = [
            (_with_error(row), f"{_named(row['measure'])}, {self._change}") for row in shown
        ]
        return Finding("\n".join(lines), numbers, headline[:4])

    def overview(self) -> Tables:
        """Return the differences of the means."""
        return {f"Differences, {self._change}. {_COLUMNS}": self._named_columns(self.table)}

    def charts(self) -> Charts:
        """Return ``a_and_b``, a point for each place, and ``difference_<measure>`` by layer and head."""
        comparable = self.places.drop_nulls("difference")
        measures = comparable["measure"].unique(maintain_order=True).to_list()
        if not measures:
            return {}
        first, second = self.names
        both = scatter(
            comparable.select("measure", "a", "b", "layer", "head"),
            "a",
            "b",
            "layer",
            also=("layer", "head"),
            x_title=first.capitalize(),
            y_title=second.capitalize(),
            color_title="Layer",
            title="Every place in both results",
        )
        charts: Charts = {
            "a_and_b": choose(both, "measure", "Measure", {name: _named(name) for name in measures})
        }
        if comparable["head"].n_unique() > 1:
            charts |= {
                f"difference_{name}": _difference(
                    comparable.filter(measure=name), name, self._change
                )
                for name in measures
            }
        return charts

    def sections(self) -> list[Section]:
        """Return the table, the charts, and all places."""
        charts = list(self.charts())
        return [
            Section("means", "Means", [_MEANS], charts[:1], self._named_columns(self.table)),
            Section("heads", "Head by head", [f"{_HEADS}, {self._change}."], charts[1:]),
            Section("places", "All places in numbers", frame=self._named_columns(self.places)),
        ]


def compare(a: Result, b: Result) -> Comparison:
    """Return what differs between two results of one study: other texts, another model, a later checkpoint.

    Places (kind, layer, head) that both have are compared. Where both are of the same texts, differences are taken
    text by text, and standard errors are those of paired differences; else those of two independent means.

    Raises:
        InputError: For results of different studies, or without a place in common.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> first, second = (idl.audit(lens, text, layers=3, certain_rows=0, examples=0) for text in idl.examples()[:2])
        >>> idl.compare(first, second).table["measure"].to_list()[:4]
        ['null_share', 'simplex_null_share', 'pearson', 'output_share']
    """
    kinds = [one.analysis if isinstance(one, Result) else type(one).__name__ for one in (a, b)]
    if not isinstance(a, Result) or kinds[0] != kinds[1]:
        raise InputError(
            f"expected two results of one study; got {kinds[0]} and {kinds[1]}. Compare runs of the same study."
        )
    tables = [one.compared for one in (a, b)]
    places = [name for name in _PLACES if name in tables[0].columns]
    schema = tables[0].drop(_LEFT_OUT, strict=False).schema
    common = schema.keys() & {*tables[1].columns} - {*places}
    measures = [name for name, kind in schema.items() if kind.is_float() and name in common]
    records = [one.provenance for one in (a, b)]
    texts = [record["texts"].get("sha256", ()) for record in records]
    same = texts[0] == texts[1]
    first, second = (_by_text(one, places, measures) for one in tables)
    keys = [*places, "measure"]
    if same:
        both = [*keys, _TEXT]
        shared = first.join(second, on=both, how="semi", maintain_order="left")
        first, second = shared, second.join(first, on=both, how="semi", maintain_order="left")
    differences = _differences(first, second, keys, paired=same)
    if differences.is_empty():
        raise InputError(
            "the results have no layer and head in common. Compare models of one architecture, or audits by relative "
            "depth: --by-depth (in Python identilens.compare_models)."
        )
    table = _means(differences, first, second, measures, paired=same)
    full = differences.match_to_schema(
        Comparison.schema["places"], missing_columns="insert", extra_columns="ignore"
    )
    said = {
        name: f"{one.subject()}, run {one.provenance['fingerprint'][:8]}"
        for name, one in (("a", a), ("b", b))
    }
    read = list(dict.fromkeys(chain(*texts)))
    models = [str(record["model"].get("name")) for record in records]
    digests = [record["model"].get("sha256") for record in records]
    if None not in digests and digests[0] == digests[1]:
        models = models[:1] * 2  # One model may have two names.
    model = {"name": " and ".join(dict.fromkeys(models))}
    settings: dict[str, Any] = {"study": a.analysis, **said, "models": models}
    own, other = ({**record["settings"], "seed": record.get("seed")} for record in records)
    settings["different"] = [
        f"{name} ({value} and {other.get(name)})"
        for name, value in own.items()
        if value != other.get(name)
    ]
    if "n_key" in a.table.columns:
        settings["mean_keys"] = [one.table["n_key"].mean() for one in (a, b)]
    record = provenance("compare", Identity(model, []), settings)
    return Comparison.of(
        {"table": table, "places": full},
        {**record, "texts": {"count": len(read), "sha256": read}},
    )


def _by_text(table: pl.DataFrame, places: Sequence[str], measures: Sequence[str]) -> pl.DataFrame:
    """Return the mean of each measure at each place of each text, a row each."""
    named = table if _TEXT in table.columns else table.with_columns(pl.lit(0).alias(_TEXT))
    keys = [*places, _TEXT]
    means = named.group_by(keys, maintain_order=True).agg(pl.col(measures).mean())
    return means.unpivot(measures, index=keys, variable_name="measure", value_name="value").filter(
        pl.col("value").is_finite()
    )


def _differences(
    a: pl.DataFrame, b: pl.DataFrame, keys: Sequence[str], *, paired: bool
) -> pl.DataFrame:
    """Return the means of both sides, their difference and its standard error over texts, by the keys."""
    if paired:
        joined = a.join(b, on=[*keys, _TEXT], suffix="_b", maintain_order="left")
        change = pl.col("value_b") - pl.col("value")
        return joined.group_by(keys, maintain_order=True).agg(
            a=pl.col("value").mean(),
            b=pl.col("value_b").mean(),
            difference=change.mean(),
            error=change.std() / pl.len().sqrt(),
        )
    value = pl.col("value")
    means = [
        side.group_by(keys, maintain_order=True).agg(
            mean=value.mean(), error=value.std() / pl.len().sqrt()
        )
        for side in (a, b)
    ]
    error = (pl.col("error").pow(2) + pl.col("error_b").pow(2)).sqrt()
    joined = means[0].join(means[1], on=keys, suffix="_b", maintain_order="left")
    return joined.select(
        *keys, a="mean", b="mean_b", difference=pl.col("mean_b") - pl.col("mean"), error=error
    )


def _means(
    differences: pl.DataFrame,
    first: pl.DataFrame,
    second: pl.DataFrame,
    measures: Sequence[str],
    *,
    paired: bool,
) -> pl.DataFrame:
    """Return the means over all places, with the errors of their differences over texts."""
    whole, other = (
        side.group_by(_TEXT, "measure").agg(pl.col("value").mean()) for side in (first, second)
    )
    overall = _differences(whole, other, ["measure"], paired=paired).select("measure", "error")
    return (
        differences.group_by("measure", maintain_order=True)
        .agg(
            pl.col("a", "b", "difference").mean(),
            spread=pl.col("difference").std(),
            places=pl.len().cast(pl.Int64),
        )
        .join(overall, on="measure", maintain_order="left")
        .sort(pl.col("measure").cast(pl.Enum(measures)))
        .select(list(Comparison.schema["table"]))
    )


def _difference(frame: pl.DataFrame, name: str, change: str) -> AnyChart:
    reach = max([abs(value) for value in frame["difference"] if isfinite(value)] or [1.0]) or 1.0
    chart = heat(
        frame.select("kind", "layer", "head", "difference", "error"),
        "head",
        "layer",
        "difference",
        diverging=True,
        domain=(-reach, reach),
        x_title="Head",
        y_title="Layer",
        color_title="Difference",
        also=("error",),
        title=f"{_named(name).capitalize()}: {change}",
    )
    return choose_kind(chart, frame)


def _sentence(row: Row, names: tuple[str, str]) -> str:
    means = f"{_named(row['measure']).capitalize()}: {row['a']:.3g} ({names[0]}) and {row['b']:.3g} ({names[1]})"
    if row["equal"]:
        return f"{means}, equal up to rounding."
    return f"{means}, a change of {_with_error(row)}{_UNSURE * (row['size'] is not None and row['size'] < 2)}."


def _with_error(row: Row) -> str:
    """Return a difference with its standard error."""
    error = (
        " (one text, so no error over texts)" if row["error"] is None else f" ± {row['error']:.2g}"
    )
    return _signed(row["difference"]) + error


def _named(measure: str) -> str:
    return measure.replace("_", " ")


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")


_UNSURE = ", within two of its standard errors"
_COLUMNS = (
    "error: standard error over texts; spread: standard deviation of the differences over places; places: how many "
    "layers and heads both have; 0 where there is only rounding"
)
_MEANS = (
    "Means over all places (a layer and head, or what the rows of the study are about) that both results have. The "
    "error is the standard error of the difference over texts, paired where these are the same; the spread is the "
    "standard deviation of the differences over places. What is only rounding is shown as 0."
)
_HEADS = "Mean over texts at every layer and head"
