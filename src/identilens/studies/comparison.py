"""Results of one study beside each other: measure by measure, and layer by layer at their relative depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.errors import InputError
from identilens.runs.provenance import Identity, provenance
from identilens.runs.result import Finding, Result
from identilens.runs.tables import decimals
from identilens.studies.audit.result import Audit

_PLACES = ("kind", "layer", "head", "alternative", "state", "setting")
_TEXT = "text"
_LEFT_OUT = (
    "reconstruction_error",
    "certain_mass_error",
    "weight",
    "norm_share",
    "contribution",
)
"""Measures of rounding and of errors, and those whose mean over a row is 1 over its keys whatever the model does."""

ROUNDING = 1e-9
"""Differences up to this, absolutely or as a share of the larger mean, are rounding."""

_FINDING = """\
{run} differs from {first} most in {measure}, measured in standard errors: {mean:.3g} there, a change of \
{difference:+.3g} ± {error:.2g} over texts.
{run} differs from {first} most in {measure}: {mean:.3g} there, a change of {change:+.3g} (one text, so no error).
No measure differs between {equal:result} by more than rounding.
{apart:result} have no layer and head in common: only means of layers can be compared, at their relative depth.
Their texts or tokens are not the same: nullity, null share, certain mass and norm shares change with their {texts} \
alone.
"""
_DEPTH = """\
Means over texts and heads. Depth 0 is the first layer with attention, 1 the last, so that models of any size stand \
side by side.
"""


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """What differs between results of one study: other texts, other models, or checkpoints of one training run.

    Attributes:
        table: One row for each result and measure: its mean over texts, and the difference from the first result over
            the places (kind, layer, head) that both have, with its standard error over texts (paired where these are
            the same), and the number of places.
        layers: Mean of each measure in each layer of a kind of attention, at its relative depth: 0 for the first layer
            with attention, 1 for the last.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> first, second = (idl.audit(lens, text, layers=3, certain_rows=0, examples=0) for text in idl.examples()[:2])
        >>> idl.compare(first, second).table.columns
        ['run', 'measure', 'mean', 'difference', 'error', 'places']
    """

    analysis: ClassVar = "compare"
    title: ClassVar = "Comparison of results"
    schema: ClassVar = {
        "table": {
            "run": pl.String,
            "measure": pl.String,
            **decimals("mean", "difference", "error"),
            "places": pl.Int64,
        },
        "layers": {
            "run": pl.String,
            "layer": pl.Int64,
            "depth": pl.Float64,
            "measure": pl.String,
            "value": pl.Float64,
        },
    }
    words: ClassVar = {"run": "Result", "depth": "Relative depth", "value": "Mean of a layer"}
    views: ClassVar = {
        "depth": View(
            lines, ("depth", "value", "run"), "Layer by layer", _DEPTH, "layers", also=("layer",)
        ),
        "measures": View(title="Measure by measure", listed=True),
    }

    layers: pl.DataFrame

    def subject(self) -> str:
        """Return what was compared."""
        return "; ".join(self.provenance["settings"]["runs"])

    def summary(self) -> Finding:
        """Return the measure that differs most, in standard errors of its difference."""
        difference, mean = pl.col("difference").abs(), pl.col("mean").abs()
        larger = pl.max_horizontal(mean, difference)
        changed = self.table.filter(difference > ROUNDING * larger.clip(1))
        order = [difference / pl.col("error"), difference / larger]
        changed = changed.sort(order, descending=True, nulls_last=True)
        numbers: dict[str, Any] = {"first": self.table["run"][0]}
        if len(changed):
            numbers |= changed.row(0, named=True)
            if numbers["error"] is None:
                numbers["change"] = numbers.pop("difference")
        else:
            name = "equal" if self.table["places"].count() else "apart"
            numbers[name] = self.table["run"].n_unique()
        if not self.provenance["settings"]["same_texts"]:
            numbers["texts"] = "lengths and kinds"
        return Finding.of(_FINDING, **numbers)


def compare(*results: Result) -> Comparison:
    """Return what differs between results of one study.

    Models may differ in family and size; then only their layers are compared, by relative depth. Where texts are the
    same, differences are taken text by text, and standard errors are those of paired differences; else those of two
    independent means. Audits are also compared by the effect of each head.

    Raises:
        InputError: For a single result, or results of different studies.

    Examples:
        >>> import identilens as idl
        >>> audits = [idl.audit(idl.load(name), idl.examples()[0]) for name in ("bundled", "bundled-decoder")]
        >>> idl.compare(*audits).layers.filter(measure="null_share")["depth"].round(2).to_list()
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 0.0, 0.33, 0.67, 1.0]
    """
    kinds = {one.analysis if isinstance(one, Result) else type(one).__name__ for one in results}
    if len(kinds) != 1 or len(results) < 2 or not isinstance(results[0], Result):
        raise InputError(
            f"expected two or more results of one study; got {len(results)} of {', '.join(sorted(kinds)) or 'none'}."
        )
    tables = [_measured(result) for result in results]
    measures = [
        name
        for name, kind in tables[0].schema.items()
        if kind.is_float() and all(name in table.columns for table in tables)
    ]
    places = [name for name in _PLACES if name in tables[0].columns]
    texts = [result.provenance["texts"] for result in results]
    names = _names(results)
    first = _by_text(tables[0], places, measures)
    rows = []
    for name, table, own in zip(names, tables, texts, strict=True):
        values = _by_text(table, places, measures)
        means = values.group_by("measure", maintain_order=True).agg(mean=pl.col("value").mean())
        if rows:
            differences = _differences(first, values, places, paired=own == texts[0])
            means = means.join(differences, on="measure", how="left", maintain_order="left")
        rows.append(means.with_columns(run=pl.lit(name)))
    layers = [_layers(*one, measures) for one in zip(names, tables, strict=True)]
    table = pl.concat(rows, how="diagonal").select(list(Comparison.schema["table"]))
    settings = {
        "runs": [f"{name}: {one.subject()}" for name, one in zip(names, results, strict=True)],
        "same_texts": all(own == texts[0] for own in texts),
    }
    identity = Identity({"name": "several"}, [])
    return Comparison.of(
        {"table": table, "layers": pl.concat(layers)}, provenance("compare", identity, settings)
    )


def _measured(result: Result) -> pl.DataFrame:
    """Return the measures of a result; those of an audit with the effect of each head."""
    table = result.table.drop(_LEFT_OUT, strict=False)
    if isinstance(result, Audit):
        head = ["text", "kind", "layer", "head"]
        effects = result.effects.select(*head, "effect")
        table = table.join(effects, on=head, how="left", maintain_order="left")
    return table if _TEXT in table.columns else table.with_columns(text=pl.lit(0))


def _names(results: Sequence[Result]) -> list[str]:
    """Return the model's name of each result; equal ones are numbered."""
    names = [str(one.provenance["model"].get("name")) for one in results]
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _by_text(table: pl.DataFrame, places: Sequence[str], measures: Sequence[str]) -> pl.DataFrame:
    """Return the mean of each measure at each place of each text, a row each."""
    keys = [*places, _TEXT]
    means = table.group_by(keys, maintain_order=True).agg(pl.col(measures).mean())
    values = means.unpivot(measures, index=keys, variable_name="measure")
    return values.filter(pl.col("value").is_finite())


def _differences(
    first: pl.DataFrame, second: pl.DataFrame, places: Sequence[str], *, paired: bool
) -> pl.DataFrame:
    """Return the mean difference of each measure over places in common, and its error over texts."""
    how = "inner" if paired else "full"
    keys = [*places, "measure", _TEXT]
    values = first.join(second, on=keys, how=how, coalesce=True, suffix="_second")
    a, b = pl.col("value"), pl.col("value_second")
    variance = (b - a).var() / pl.len() if paired else a.var() / a.count() + b.var() / b.count()
    by_place = values.group_by(*places, "measure").agg(difference=b.mean() - a.mean())
    by_text = values.group_by(_TEXT, "measure").agg(a.mean(), b.mean())
    errors = by_text.group_by("measure").agg(error=variance.sqrt())
    apart = by_place.drop_nulls("difference").group_by("measure")
    means = apart.agg(pl.col("difference").mean(), places=pl.len().cast(pl.Int64))
    return means.join(errors, on="measure")


def _layers(name: str, table: pl.DataFrame, measures: Sequence[str]) -> pl.DataFrame:
    """Return the mean of each measure in each layer of a result, by relative depth; none where it has no layers."""
    if not {"kind", "layer"} <= set(table.columns):
        return pl.DataFrame(schema=Comparison.schema["layers"])
    means = table.group_by("kind", "layer").agg(pl.col(measures).mean()).sort("kind", "layer")
    order, last = pl.int_range(pl.len()).over("kind"), (pl.len().over("kind") - 1).clip(1)
    named = pl.format("{} ({})", pl.lit(name), "kind")
    layers = means.with_columns(depth=order / last, run=named)
    long = layers.unpivot(measures, index=["run", "layer", "depth"], variable_name="measure")
    return long.drop_nulls("value").select(list(Comparison.schema["layers"]))
