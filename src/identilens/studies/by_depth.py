"""Audits of several models, or of checkpoints of one training run, by relative depth."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import Value, choose, lines
from identilens.charts.page import Section
from identilens.errors import InputError
from identilens.runs.provenance import Identity, provenance
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Tables, counted, decimals, integers, percent
from identilens.studies.audit.heads import certain_error
from identilens.studies.audit.result import Audit

_MEASURES = {
    "certain_mass": "Certain mass",
    "certain_mass_bfloat16": "Certain mass up to bfloat16's rounding",
    "null_share": "Null share",
    "effect": "Mean change without a head",
    "largest_effect": "Largest change without a head",
}
_TEXT = (
    "Depth 0 is a model's first layer with attention, 1 its last. Certain mass: at least this share of a row's "
    "attention lies on the same keys in all weights that give the head's output exactly, or up to a rounding to "
    "bfloat16. Null share: share of squared weight in directions without effect on the output. Change: of the "
    "prediction (nats) or the final hidden states (relative) when a head is removed."
)


@dataclass(frozen=True, kw_only=True)
class ModelComparison(Result):
    """Audits of several models beside each other, layer by layer.

    Attributes:
        table: One row for each audit and layer: ``depth`` from 0 (first layer with attention) to 1 (last), mean number
            of keys, certain mass, exact and up to bfloat16's rounding, the standard error of the latter over texts (of
            a single text over the drawn queries), null share, and the mean and the largest change of the model's answer
            without one of its heads (``outcome``: nats of the prediction, or relative change of states). Missing where
            an audit did not look at it.

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
            **integers("layer", "heads"),
            **decimals(
                "depth", "keys", "certain_mass", "certain_mass_bfloat16", "certain_mass_error"
            ),
            "null_share": pl.Float64,
            "outcome": pl.String,
            **decimals("effect", "largest_effect"),
        }
    }
    keys: ClassVar = {"table": ("model", "kind", "layer")}

    def by_model(self) -> pl.DataFrame:
        """Return the mean of each measure over layers, and the largest change without a head, for each model."""
        means = pl.col("keys", *list(_MEASURES)[:-1]).mean()
        groups = self.table.group_by("model", "kind", maintain_order=True)
        return groups.agg(pl.len().alias("layers"), means, pl.col("largest_effect").max())

    def summary(self) -> Finding:
        """Return what each model's mean certain mass and null share are, and where certain mass is least and most."""
        said, numbers = [], {}
        for (model, kind), rows in self.table.group_by("model", "kind", maintain_order=True):
            mass = "certain_mass_bfloat16"
            shares = rows.drop_nulls(mass).sort(mass, maintain_order=True)
            name = f"{model}, {kind}"
            line = f"{name}: null share {percent(rows['null_share'].mean())}"
            if len(shares):
                mean = shares[mass].mean()
                line += (
                    f", certain mass up to bfloat16's rounding {percent(mean)} (exactly "
                    f"{percent(shares['certain_mass'].mean())}; least {percent(shares[mass][0])} at depth "
                    f"{shares['depth'][0]:.2f}, most {percent(shares[mass][-1])} at depth {shares['depth'][-1]:.2f})"
                )
                numbers[f"{mass} {name}"] = mean
            said.append(
                f"{line}; means over {counted(len(rows), 'layer')}, texts of {rows['keys'].mean():.0f} keys on average."
            )
        if self.table["certain_mass"].round(9).max() == 1:
            said.append(
                "Where the exact certain mass is 100 %, texts are too short for other weights with the same output: "
                "they have no more tokens than a head's values have dimensions, which says nothing of the model."
            )
        if not self.provenance["settings"]["same_texts"]:
            said.append(
                "The audits are of different texts. All of these measures change with the length and kind of text."
            )
        headline = [
            (percent(share), f"certain mass up to bfloat16's rounding, {name.partition(' ')[2]}")
            for name, share in numbers.items()
        ]
        return Finding("\n".join(said), numbers, headline[:4])

    def overview(self) -> Tables:
        """Return the means of each model."""
        names = {
            "certain_mass_bfloat16": "certain",
            "certain_mass": "exactly",
            "null_share": "null",
            "largest_effect": "largest",
        }
        return {"Means over layers": self.by_model().rename(names)}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``depth``: one line for each model, of one measure at a time."""
        frame = self.table.with_columns(
            model=pl.format("{} ({})", "model", "kind")
            if self.table["kind"].n_unique() > 1
            else "model"
        )
        long = frame.unpivot(
            list(_MEASURES), index=["model", "depth", "layer"], variable_name="measure"
        )
        shown = long.drop_nulls("value")
        measures = set(shown["measure"])
        names: dict[Value, str] = {
            one: words for one, words in _MEASURES.items() if one in measures
        }
        chart = lines(
            shown,
            "depth",
            "value",
            "model",
            also=("layer",),
            x_title="Relative depth",
            y_title="Value",
            color_title="Model",
            title="Layers by relative depth",
        )
        return {"depth": choose(chart, "measure", "Measure", names)}

    def sections(self) -> list[Section]:
        """Return the chart and the tables."""
        return [
            Section("depth", "By relative depth", [_TEXT], ["depth"], self.by_model()),
            Section("layers", "Layers in numbers", frame=self.table),
        ]


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
    right = [one for one in audits if isinstance(one, Audit)]
    if not right or len(right) < len(audits):
        given = ", ".join(type(one).__name__ for one in audits) or "none"
        raise InputError(
            f"expected results of audits; got {given}. Run `identilens audit` for each model."
        )
    names = [str(one.provenance["model"].get("name")) for one in audits]
    labels = [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]
    table = pl.concat([_layers(label, one) for label, one in zip(labels, right, strict=True)])
    texts = [list(one.provenance["texts"].get("sha256") or ()) for one in audits]
    runs = [one.provenance["fingerprint"] for one in audits]
    model = {"name": ", ".join(labels)}
    record = provenance(
        "compare-models",
        Identity(model, []),
        {"runs": runs, "same_texts": all(one == texts[0] for one in texts)},
    )
    every = list(dict.fromkeys(digest for one in texts for digest in one))
    return ModelComparison.of(
        {"table": table}, {**record, "texts": {"count": len(every), "sha256": every}}
    )


def _layers(label: str, audit: Audit) -> pl.DataFrame:
    """Return the layers of an audit, in order."""
    by = ["kind", "layer"]
    heads = (
        audit.heads()
        .group_by(by)
        .agg(
            pl.len().cast(pl.Int64).alias("heads"),
            pl.col("outcome").first(),
            pl.col("effect").mean(),
            pl.col("effect").max().alias("largest_effect"),
        )
    )
    errors = [
        {
            **dict(zip(by, place, strict=True)),
            "certain_mass_error": certain_error(rows, audit.table)[0],
        }
        for place, rows in audit.rows.group_by(by, maintain_order=True)
    ]
    kinds = ModelComparison.schema["table"]
    known = pl.DataFrame(errors, {name: kinds[name] for name in (*by, "certain_mass_error")})
    keys = audit.table.group_by(by).agg(pl.col("n_key").mean().alias("keys"))
    layers = audit.by_layer().join(heads, on=by).join(keys, on=by)
    layers = layers.join(known, on=by, how="left").sort(by)
    place, last = pl.int_range(pl.len()).over("kind"), (pl.len().over("kind") - 1).clip(1)
    return layers.with_columns(depth=place / last, model=pl.lit(label)).select(list(kinds))
