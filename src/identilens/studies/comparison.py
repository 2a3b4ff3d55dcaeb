"""Results beside each other: two of one study, measure by measure, or audits of many models by relative depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.kit import Charts, choose, lines, scatter
from identilens.errors import InputError
from identilens.runs.provenance import Identity, provenance
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, decimals
from identilens.studies.audit.result import Audit

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

ROUNDING = 1e-9
"""Differences up to this, absolutely or as a share of the larger mean, are rounding."""

LENGTH_CHANGE = 0.1
"""Change of the mean number of keys, as a share, from which on the finding warns."""

_MEASURES = ("certain_mass", "certain_mass_bfloat16", "null_share", "effect", "largest_effect")


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """What differs between two results of one study.

    Attributes:
        table: One row for each measure, over all places that both results have: means of a and b (the first and the
            second result), their difference b − a, its standard error over texts (paired where these are the same),
            the spread (standard deviation) of the differences over places, and the number of these places.
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

    def subject(self) -> str:
        """Return what was compared."""
        return "a: {a}; b: {b}".format(**self.provenance["settings"])

    def summary(self) -> Finding:
        """Return the measures that differ most, in standard errors of their differences."""
        change, larger = pl.col("difference").abs(), pl.max_horizontal(pl.col("a", "b").abs())
        apart = self.table.filter(change > ROUNDING * larger.clip(1))
        order = [change / pl.col("error"), change / larger]
        shown = apart.sort(order, descending=True, nulls_last=True).head(_SHOWN)
        said = [self.subject(), *map(_sentence, shown.iter_rows(named=True))]
        keys = self.provenance["settings"]["keys"]
        if keys and abs(keys[0] - keys[1]) > LENGTH_CHANGE * max(keys):
            said.append(
                f"The texts differ in length (on average {keys[0]:.0f} and {keys[1]:.0f} keys): nullity, null share, "
                "certain mass and norm shares change with length alone. Compare texts of one length."
            )
        return Finding("\n".join(said), dict(self.table.select("measure", "difference").rows()), [])

    def charts(self) -> Charts:
        """Return ``a_and_b``, a point for each place, of one measure at a time."""
        index = ["measure", "a", "b", "layer", "head"]
        chart = scatter(self.places.select(index), "a", "b", "layer", also=("layer", "head"))
        return {"a_and_b": choose(chart, "measure", "Measure", self.table["measure"].to_list())}


@dataclass(frozen=True, kw_only=True)
class ModelComparison(Result):
    """Audits of several models beside each other, layer by layer.

    Attributes:
        table: One row for each audit and layer: ``depth`` from 0 (first layer with attention) to 1 (last), mean number
            of keys, certain mass, exact and up to bfloat16's rounding, null share, and the mean and the largest change
            of the model's answer without one of its heads (``outcome``: nats of the prediction, or relative change of
            states). Missing where an audit did not look at it.

    Examples:
        >>> import identilens as idl
        >>> models, text = ("bundled", "bundled-decoder"), idl.examples()[0]
        >>> audits = [idl.audit(idl.load(name), text, certain_rows=2) for name in models]
        >>> idl.compare_models(*audits).table.group_by("model", maintain_order=True).len().rows()
        [('bundled', 6), ('bundled-decoder', 4)]
    """

    analysis: ClassVar = "compare-models"
    title: ClassVar = "Models by depth"
    schema: ClassVar = {
        "table": {
            "model": pl.String,
            "kind": pl.String,
            "layer": pl.Int64,
            **decimals("depth", "keys"),
            "outcome": pl.String,
            **decimals(*_MEASURES),
        }
    }
    keys: ClassVar = {"table": ("model", "kind", "layer")}

    def subject(self) -> str:
        """Return how many audits are compared."""
        return f"{self.table['model'].n_unique()} audits"

    def summary(self) -> Finding:
        """Return the means of each model over its layers."""
        groups = self.table.group_by("model", "kind", maintain_order=True)
        means = groups.agg(
            pl.col("certain_mass_bfloat16", "null_share").mean().round(3).cast(pl.String)
        ).fill_null("not looked at")
        said = [
            f"{model}, {kind}: certain mass up to bfloat16's rounding {certain}, null share {null}."
            for model, kind, certain, null in means.iter_rows()
        ]
        if not self.provenance["settings"]["same_texts"]:
            said.append(
                "The audits are of different texts, with whose length and kind measures change."
            )
        return Finding("\n".join(said), {}, [])

    def charts(self) -> Charts:
        """Return ``depth``: one line for each model, of one measure at a time."""
        named = self.table.with_columns(model=pl.format("{} ({})", "model", "kind"))
        index = ["model", "depth", "layer"]
        frame = named.unpivot(list(_MEASURES), index=index, variable_name="measure").drop_nulls()
        chart = lines(frame, "depth", "value", "model", also=("layer",), x_title="Relative depth")
        return {"depth": choose(chart, "measure", "Measure", list(_MEASURES))}


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
    tables = [one.compared.drop(_LEFT_OUT, strict=False) for one in (a, b)]
    places = [name for name in _PLACES if name in tables[0].columns]
    measures = [
        name
        for name, kind in tables[0].schema.items()
        if kind.is_float() and name in tables[1].columns
    ]
    first, second = (_by_text(*one, places, measures) for one in zip("ab", tables, strict=True))
    paired, keys = a.provenance["texts"] == b.provenance["texts"], [*places, "measure"]
    values = first.join(
        second,
        on=[*keys, _TEXT],
        how="inner" if paired else "full",
        coalesce=True,
        maintain_order="left",
    )
    means = _differences(values, keys, paired)
    if means.is_empty():
        raise InputError(
            "the results have no layer and head in common. Compare models of one architecture, or audits by relative "
            "depth: --by-depth (in Python identilens.compare_models)."
        )
    by_text = values.group_by(_TEXT, "measure").agg(pl.col("a", "b").mean())
    errors = _differences(by_text, ["measure"], paired).select("measure", "error")
    table = means.group_by("measure").agg(
        pl.col("a", "b", "difference").mean(), spread=pl.col("difference").std(), places=pl.len()
    )
    table = table.join(errors, on="measure").sort(pl.col("measure").cast(pl.Enum(measures)))
    schema = Comparison.schema["places"]
    tables = {
        "table": table.select(list(Comparison.schema["table"])),
        "places": means.match_to_schema(schema, missing_columns="insert", extra_columns="ignore"),
    }
    settings: dict[str, Any] = {
        "keys": [one.table["n_key"].mean() for one in (a, b) if "n_key" in one.table.columns]
    }
    for name, one in (("a", a), ("b", b)):
        settings[name] = f"{one.subject()}, {one.analysis} {one.provenance['fingerprint'][:8]}"
    return Comparison.of(tables, provenance("compare", _NOBODY, settings))


_NOBODY = Identity({"name": "several"}, [])


def _by_text(
    side: str, table: pl.DataFrame, places: Sequence[str], measures: Sequence[str]
) -> pl.DataFrame:
    """Return the mean of each measure at each place of each text, a row each."""
    named = table if _TEXT in table.columns else table.with_columns(pl.lit(0).alias(_TEXT))
    keys = [*places, _TEXT]
    means = named.group_by(keys, maintain_order=True).agg(pl.col(measures).mean())
    values = means.unpivot(measures, index=keys, variable_name="measure", value_name=side)
    return values.filter(pl.col(side).is_finite())


def _differences(values: pl.DataFrame, keys: Sequence[str], paired: bool) -> pl.DataFrame:
    """Return the means of both sides, their difference and its standard error over texts, by the keys."""
    a, b = pl.col("a"), pl.col("b")
    error = (b - a).var() / pl.len() if paired else a.var() / a.count() + b.var() / b.count()
    groups = values.group_by(keys, maintain_order=True)
    means = groups.agg(a.mean(), b.mean(), error=error.sqrt()).drop_nulls(["a", "b"])
    return means.with_columns(difference=b - a)


def _sentence(row: Row) -> str:
    """Return a measure's means and their difference, with its standard error over texts."""
    error = "one text, so no error" if row["error"] is None else f"± {row['error']:.2g}"
    return (
        "{measure}: {a:.3g} (a) and {b:.3g} (b), a change of {difference:+.3g} ".format(**row)
        + f"({error})."
    )


def compare_models(*audits: Result) -> ModelComparison:
    """Return audits of several models, or of checkpoints of one training run, layer by layer and by relative depth.

    Models may differ in family and size. Those of the same name are numbered in the order in which they are given.

    Raises:
        InputError: For none, or other results than audits.

    Examples:
        >>> import identilens as idl
        >>> audit = idl.audit(idl.load("bundled-decoder"), idl.examples()[0])
        >>> found = idl.compare_models(audit)
        >>> found.table["depth"].round(2).to_list()
        [0.0, 0.33, 0.67, 1.0]
    """
    own = [one for one in audits if isinstance(one, Audit)]
    if not own or len(own) < len(audits):
        given = ", ".join(type(one).__name__ for one in audits) or "none"
        raise InputError(
            f"expected results of audits; got {given}. Run `identilens audit` for each model."
        )
    names = [str(one.provenance["model"].get("name")) for one in own]
    labels = [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]
    table = pl.concat([_layers(label, one) for label, one in zip(labels, own, strict=True)])
    texts = [one.provenance["texts"].get("sha256") for one in own]
    settings = {
        "runs": [one.provenance["fingerprint"] for one in own],
        "same_texts": all(one == texts[0] for one in texts),
    }
    return ModelComparison.of({"table": table}, provenance("compare-models", _NOBODY, settings))


def _layers(label: str, audit: Audit) -> pl.DataFrame:
    """Return the layers of an audit, in order."""
    by, effect = ["kind", "layer"], pl.col("effect")
    heads = audit.heads().group_by(by)
    heads = heads.agg(pl.col("outcome").first(), effect.mean(), largest_effect=effect.max())
    means = audit.table.group_by(by).agg(pl.col(_MEASURES[:3]).mean(), keys=pl.col("n_key").mean())
    layers = means.join(heads, on=by).sort(by)
    place, last = pl.int_range(pl.len()).over("kind"), (pl.len().over("kind") - 1).clip(1)
    layers = layers.with_columns(depth=place / last, model=pl.lit(label))
    return layers.select(list(ModelComparison.schema["table"]))
