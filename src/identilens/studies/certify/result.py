"""The result of certifying rows of attention: intervals, shares and verdicts."""

from dataclasses import dataclass, replace
from typing import ClassVar

import polars as pl
import torch

from identilens.charts.cells import token_map
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import Charts, intervals
from identilens.charts.labels import visible_text
from identilens.charts.token_lines import Mark, TokenLine
from identilens.charts.views import View
from identilens.errors import InputError
from identilens.models.token_names import unmarked
from identilens.runs.result import Finding, Result
from identilens.runs.settings import Kind
from identilens.runs.tables import HEAD, Row, counted, ends
from identilens.studies.certify.rows import CLAIMS, PLACE, ROW, SCHEMA, VERDICTS
from identilens.studies.drawn import mean_of_rows
from identilens.studies.head_views import marked_line
from identilens.studies.outcomes import ONLY_FEW, exactness, normed_heads
from identilens.studies.settings import UNITS

LINES, KEYS, BARS = 24, 40, 500
"""Lines of tokens in a page, largest weights of a row whose bars are drawn, and rows of which they are."""

SIGNS = "●○▲△·"
"""Signs of the verdicts, for readers who cannot tell the colours apart."""

OUTCOMES = {
    "head": "the head's output",
    "layer": "the sum of all heads' outputs, which enters the residual stream,",
    "states": "the model's final hidden states",
    "prediction": "the model's prediction",
}
"""What stays the same, in words, by outcome."""

_MARKS = {
    verdict: Mark(verdict, sign, series, strong)
    for verdict, sign, series, strong in zip(
        VERDICTS, SIGNS, (0, 0, 1, 1, None), (True, False, True, False, False), strict=True
    )
}
_MAP = "map_text{text}_layer{layer}_head{head}_{kind}"
_COLUMN, _MAPS = 150, 12
"""Pixels of the longer side of a map that is a column wide with its tokens, and heads whose maps are drawn."""
_BEFORE_NORM = "what the head mixes, before the model normalises it,"

_FINDING = """\
Claim “{claim}” is {value:z.3g}, and between {lo:≥z.3g} and {hi:≤z.3g} in the alternatives, in the mean of \
{claimed:row}{verdict}.
With {kept} the same, {exactly}{order}, at least {certain_mass:≥.0%} of the attention of {who} is certain to stay on \
its keys.
Where the output stays exactly the same, it is {exact:≥.0%}.
Put into the model, the farthest alternatives changed the outcome by {least:.2f} to {most:.2f} times what the first \
order predicts.
{few}."""

_NUMBERS = """\
A claim, pattern, segment or source is a weighted sum of the weights of a row. The radius is the largest change of the \
outcome up to which the verdict is proven. A certificate is a file with the numbers of the proof: identilens check \
FILE computes the ends again, without model or solver.
"""

_TILES = """\
{certain_mass:≥.0%} | of the attention stays on the same keys in every alternative{order}
{large:.0%} | is determined, on keys with a large share of the output
{small:.0%} | is determined, on keys with a small share of the output
{free:.0%} | is not determined: it could be more than a tenth larger or smaller"""


@dataclass(frozen=True, kw_only=True)
class Certainty(Result):
    """Which attention weights are determined by an outcome, up to which tolerance, and what their keys bring to it.

    Attributes:
        table: Value, interval and verdict of each functional of a row, for each tolerance: of the weight of each
            visible key, and of claims, patterns, segments and sources, with the file of the certificate.
        rows: What is certain of each query's row as a whole, for each tolerance.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.certify(lens, idl.examples()[0], layers=3, heads=9, queries=(10, 11), tolerance=0)
        >>> result.by_query().select("query_token", "certain_mass", "first in every alternative")
        shape: (2, 3)
        ┌─────────────┬──────────────┬────────────────────────────┐
        │ query_token ┆ certain_mass ┆ first in every alternative │
        │ ---         ┆ ---          ┆ ---                        │
        │ str         ┆ f64          ┆ str                        │
        ╞═════════════╪══════════════╪════════════════════════════╡
        │ once        ┆ 0.809582     ┆ null                       │
        │ sitting     ┆ 0.82358      ┆ [CLS]                      │
        └─────────────┴──────────────┴────────────────────────────┘
    """

    analysis: ClassVar = "certify"
    title: ClassVar = "What is certain of each attention weight"
    schema: ClassVar = SCHEMA
    words: ClassVar = {
        "value": "Value: attention, or what a functional has of it",
        "lo": "Lo: proven least value in any alternative",
        "hi": "Hi: proven greatest value in any alternative",
        "radius": "Radius: largest change of the outcome up to which the verdict is proven",
        "certain_mass": "Certain mass: attention that every alternative keeps on the same keys",
        "norm_share": "Norm share: length of what the key adds, over the sum of all such lengths",
        "determinacy": "Weight",
        "bar": "Key",
    }
    views: ClassVar = {
        "lines": View(
            title="The text, marked by verdict",
            text="Every line is the attention of one query: the tokens that it sees with their weights. Determined: "
            "every alternative with the same outcome keeps the weight within a tenth of its value. Large share: what "
            "the key adds to the output is, by length, at least what keys add on average. Negligible: a small share, "
            "and in every alternative less than half the weight that each key would have if attention were even.",
            lines="lines",
        ),
        "intervals": View(
            intervals,
            ("bar", "lo", "hi", "value", "determinacy"),
            title="Intervals of the largest weights",
            text="Every bar runs over all values that a weight can take while the outcome, and the sum of the row, "
            "stay the same and no weight is negative. The dot is the weight itself.\n{normed}",
            table="bars",
            also=("norm_share", "radius", "verdict"),
            choices=("row",),
            look={"x_scale": "sqrt"},
        ),
        "maps": View(
            title="Maps with their certain cells",
            text="One head a map, its certified rows alone. A frame is around a weight that every alternative with "
            "the same outcome keeps within a tenth of its value.",
            method="maps",
        ),
        "rows": View(
            title="Rows in numbers",
            text="To cite a row, name its text, layer, head and query, with {kept} kept {exactly}{order}.",
            table="by_query",
            listed=True,
        ),
        "table": View(title="Weights and claims in numbers", text=_NUMBERS, listed=True),
    }

    rows: pl.DataFrame

    @property
    def weights(self) -> pl.DataFrame:
        """The weights of keys."""
        return self.table.drop_nulls("key")

    @property
    def claims(self) -> pl.DataFrame:
        """The claims, patterns, segments and sources."""
        return self.table.filter(pl.col("key").is_null()).select(*CLAIMS)

    def mean(self, *by: str) -> pl.DataFrame:
        """Return means of claims, patterns, segments and sources over rows, by columns such as ``layer``."""
        return mean_of_rows(self.claims, by)

    def by_query(self) -> pl.DataFrame:
        """Return, for each row, its certain mass (Σ lo), attention by verdict, and the key that is certainly first."""
        verdicts = [
            pl.col("value").filter(verdict=verdict).sum().alias(verdict) for verdict in VERDICTS
        ]
        rows = self.weights.group_by(list(ROW), maintain_order=True).agg(
            pl.len().alias("keys"),
            pl.col("lo").sum().alias("certain_mass"),
            *verdicts,
        )
        first = pl.col("token").alias("first in every alternative")
        tops = self.weights.select(*PLACE, first, certified_top="key")
        named = self.rows.drop("gap", "query_token").join(
            tops, on=[*PLACE, "certified_top"], how="left", maintain_order="left"
        )
        return rows.join(named.drop("certified_top"), on=PLACE, maintain_order="left")

    def plot_map(self, layer: int, head: int, text: int = 0, kind: Kind | None = None) -> AnyChart:
        """Return the map of a head, a column of a paper wide, with a frame around each weight that is certain.

        Certain is what every alternative at the first tolerance keeps within a tenth. Rows that were not certified are
        left out. The kind is needed where the model has several.

        Raises:
            InputError: If no row of the head was certified.

        Examples:
            >>> import identilens as idl
            >>> found = idl.certify(idl.load("bundled"), "Nobody came.", layers=3, heads=9)
            >>> found.plot_map(layer=3, head=9).title["text"]
            'L3H9'
        """
        tolerance = self.table["tolerance"][0]
        rows = self.weights.filter(text=text, layer=layer, head=head, tolerance=tolerance)
        rows = rows.filter(pl.col("kind") == (kind or pl.col("kind").first()))
        if rows.is_empty():
            raise InputError(
                f"no row of text {text}, layer {layer}, head {head} was certified: certify it with layers={layer}, "
                f"heads={head}."
            )
        certain = pl.when(pl.col("verdict").is_in(VERDICTS[:2])).then("value")
        weights, marked = (
            torch.tensor(table.pivot("key", index="query", values="value").drop("query").to_numpy())
            for table in (rows, rows.with_columns(value=certain))
        )
        queries, keys = (
            rows.unique(column, maintain_order=True)[token].to_list()
            for column, token in (("query", "query_token"), ("key", "token"))
        )
        about = [f"text {text}, tolerance {tolerance}", "framed: certain"]
        title = {"text": f"L{layer}H{head}", "subtitle": about}
        return token_map({"": weights}, queries, keys, title, side=_COLUMN, marked=marked)

    def maps(self) -> Charts:
        """Return maps of the first heads of which several rows were certified, by file name."""
        heads = self.weights.group_by(list(HEAD), maintain_order=True).agg(
            pl.col("query").n_unique()
        )
        several = heads.filter(pl.col("query") > 1).drop("query").head(_MAPS)
        return {_MAP.format(**head): self.plot_map(**head) for head in several.to_dicts()}

    def summary(self) -> Finding:
        """Return the first claim or source, what is certain at the first tolerance, and what it rests on."""
        tolerance, outcome = self.table["tolerance"][0], self.rows["outcome"][0]
        facts, queries = self.rows.filter(tolerance=tolerance), self.by_query()
        rows, exact = (queries.filter(tolerance=size) for size in (tolerance, "0"))
        first, answers = rows.row(0, named=True), facts["answer"].unique()
        [mean] = rows.select(pl.col("certain_mass", *VERDICTS).mean()).to_dicts()
        large, small, *free, _ = (mean[verdict] for verdict in VERDICTS)
        normed = normed_heads(self.provenance["model"])
        kept = _BEFORE_NORM if normed and outcome == "head" else OUTCOMES[outcome]
        put = self.rows.filter(pl.col("allowed") > 0, pl.col("predicted") > 0)
        ratio = put["measured"] / put["predicted"]
        numbers = {
            "rows": len(rows),
            "certain_mass": mean["certain_mass"],
            "exact": None if tolerance == "0" else exact["certain_mass"].mean(),
            "large": large,
            "small": small,
            "free": sum(free),
            "kept": answers[0] if len(answers) == 1 and answers[0] else kept,
            "exactly": exactness(tolerance, outcome),
            "order": " (to first order)" if outcome in UNITS else "",
            "who": _name(first) if len(rows) == 1 else f"{len(rows):,} rows on average",
            "least": ratio.min(),
            "most": ratio.max(),
            "few": ONLY_FEW if len(exact) and not facts["simplex_nullity"].max() else None,
            "normed": normed,
            **self._claimed(tolerance),
        }
        finding = Finding.of(_FINDING, _TILES, **numbers)
        return replace(finding, text="\n".join(finding.text.splitlines()[:3]))

    def _claimed(self, tolerance: str) -> Row:
        """Return the means of the first claim, or of the largest source of a logit, over its rows."""
        claims = self.claims.filter(tolerance=tolerance)
        if claims.is_empty():
            return {}
        if self.provenance["settings"]["source"]:
            claims = claims.sort(pl.col("value").abs(), descending=True, maintain_order=True)
        rows = claims.filter(functional=claims["functional"][0])
        [means] = rows.select(pl.col("value", "lo", "hi").mean()).to_dicts()
        verdicts = rows["verdict"].drop_nulls().value_counts(sort=True)
        counts = [
            f"; {words} in {n:,} of {counted(len(rows), 'row')}" for words, n in verdicts.rows()
        ]
        means |= {"claim": rows["functional"][0], "claimed": len(rows)}
        return means | {"verdict": "".join(counts)}

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the functionals at the first tolerance, largest first."""
        tolerance = self.table["tolerance"][0]
        first = self.table.filter(tolerance=tolerance)
        sign = pl.col("verdict").replace(dict(zip(VERDICTS, SIGNS, strict=True)))
        shown = first.sort("value", descending=True, maintain_order=True).select(
            *HEAD, "query", sign, "functional", "token", "value", "lo", "hi", "radius"
        )
        return {f"Values and proven ends, tolerance {tolerance}": shown}

    def token_lines(self) -> list[TokenLine]:
        """Return the first row as a line of tokens marked by verdict."""
        return self.lines(1)

    def lines(self, most: int = LINES) -> list[TokenLine]:
        """Return the first rows as lines of tokens, each with its weight in percent and marked by its verdict."""
        value, lines = pl.col("value"), []
        note = pl.format(
            "{}: {}, in [{}, {}]; {}", "functional", value.round(4), *ends(4), "verdict"
        )
        percent = pl.format("{}", (100 * value).round().cast(pl.Int64))
        for row in self.weights.partition_by(PLACE, maintain_order=True)[:most]:
            first = row.row(0, named=True)
            kept = exactness(first["tolerance"], first["outcome"])
            lines.append(
                marked_line(
                    f"text {first['text']}, {visible_text(_name(first))}: outcome kept {kept}",
                    row.select("token", mark="verdict", value=percent, note=note),
                    _MARKS,
                    dict.fromkeys(VERDICTS, ""),
                )
            )
        return lines

    def bars(self) -> pl.DataFrame:
        """Return the largest weights of as many rows as a page contains, named by their ``bar`` and ``row``."""
        first = self.weights.join(self.rows.head(BARS), on=PLACE, how="semi", maintain_order="left")
        rows = first.sort("value", descending=True, maintain_order=True).group_by(
            PLACE, maintain_order=True
        )
        return rows.head(KEYS).with_columns(
            row=pl.format("text {}, L{}H{} ({}), query {}, tolerance {}", *PLACE),
            bar=pl.format("{} · {}", "token", "key"),
            determinacy=pl.col("verdict").str.split(",").list.first(),
        )


def _name(row: Row) -> str:
    """Return what a sentence calls a row."""
    return f"{unmarked(row['query_token'])!r} (query {row['query']}, L{row['layer']}H{row['head']})"
