"""The result of certifying rows of attention: intervals, shares, verdicts and the order of keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.labels import lower, shortened, upper
from identilens.charts.page import Section, citation
from identilens.charts.token_lines import TokenLine
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.models.token_names import unmarked
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, some_of, span
from identilens.studies.certify import views
from identilens.studies.certify.rows import ROW, SCHEMA, VERDICTS
from identilens.studies.certify.sources import DIRECTION
from identilens.studies.head_views import head_name
from identilens.studies.outcomes import ONLY_FEW, UNITS, exactness, normed_heads


@dataclass(frozen=True, kw_only=True)
class Certainty(Result):
    """Which attention weights are determined by an outcome, up to which tolerance, and what their keys bring to it.

    Attributes:
        table: Weight, interval, share of the output and verdict: one row for each tolerance, query and visible key.
        rows: What is certain of each query's row as a whole, for each tolerance.
        claims: Value, interval and verdict of each claim on a row, for each tolerance, with the radius of the verdict
            and the file of the certificate; empty unless there are claims.
        order: The pairs of keys whose order is the same in every alternative; empty unless it was asked for.
        parts: What the logit of a ``source`` is the sum of, by layer, itself, and the error of the sum.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.certify(lens, idl.examples()[0], layers=3, heads=9, queries=(10, 11), order=True, tolerance=0)
        >>> result.by_query().select("query_token", "certain_mass", "first in every alternative", "certified_pairs")
        shape: (2, 4)
        ┌─────────────┬──────────────┬────────────────────────────┬─────────────────┐
        │ query_token ┆ certain_mass ┆ first in every alternative ┆ certified_pairs │
        │ ---         ┆ ---          ┆ ---                        ┆ ---             │
        │ str         ┆ f64          ┆ str                        ┆ i64             │
        ╞═════════════╪══════════════╪════════════════════════════╪═════════════════╡
        │ once        ┆ 0.809582     ┆ null                       ┆ 418             │
        │ sitting     ┆ 0.82358      ┆ [CLS]                      ┆ 391             │
        └─────────────┴──────────────┴────────────────────────────┴─────────────────┘
    """

    analysis: ClassVar = "certify"
    title: ClassVar = "What is certain of each attention weight"
    schema: ClassVar = SCHEMA
    keys: ClassVar = {"table": [*views.ROW, "key"], "rows": views.ROW}

    rows: pl.DataFrame
    claims: pl.DataFrame
    order: pl.DataFrame
    parts: pl.DataFrame

    @property
    def compared(self) -> pl.DataFrame:
        """The weights, and each claim's value and ends in columns of their own."""
        ends = ["value", "lo", "hi"]
        claims = self.claims.pivot("claim", index=views.ROW, values=ends, separator=" of ")
        return pl.concat([self.table, claims], how="diagonal") if len(claims) else self.table

    def by_query(self) -> pl.DataFrame:
        """Return, for each row, its certain mass (Σ lo), the attention with each verdict, and its certain order."""
        verdicts = [
            pl.col("weight").filter(verdict=verdict).sum().alias(verdict) for verdict in VERDICTS
        ]
        groups = self.table.group_by(list(ROW), maintain_order=True)
        rows = groups.agg(
            pl.len().alias("keys"),
            pl.col("lo").sum().alias("certain_mass"),
            *verdicts,
            pl.col("pinned").sum(),
        )
        tops = self.table.select(*views.ROW, certified_top="key", first="token")
        whole = self.rows.join(
            tops, on=[*views.ROW, "certified_top"], how="left", maintain_order="left"
        )
        whole = whole.rename({"first": "first in every alternative"}).drop(
            "certified_top", "gap", "query_token"
        )
        return rows.join(whole, on=views.ROW, maintain_order="left")

    def by_head(self) -> pl.DataFrame:
        """Return the means over the rows of each head, by kind, layer and head."""
        heads = ["kind", "layer", "head", "tolerance"]
        weights = self.table.group_by(heads).agg(
            mean_width=views.WIDTH.mean(), widest=views.WIDTH.max()
        )
        rows = self.by_query().group_by(heads, maintain_order=True)
        means = rows.agg(
            pl.len().alias("rows"),
            pl.col("certain_mass", *VERDICTS).mean(),
            pinned=pl.col("pinned").sum() / pl.col("keys").sum(),
            certified_top=pl.col("first in every alternative").is_not_null().mean(),
            certified_pairs=pl.col("certified_pairs").sum()
            / pl.col("pairs").filter(_ORDERED).sum(),
        )
        return means.join(weights, on=heads, maintain_order="left").sort(
            heads[:3], maintain_order=True
        )

    def summary(self) -> Finding:
        """Return the first claim or source, what is certain at each tolerance, and what it rests on."""
        rows = self.by_query()
        groups = rows.group_by("tolerance", maintain_order=True)
        masses = dict(groups.agg(pl.col("certain_mass").mean()).iter_rows())
        tolerance, outcome = next(iter(masses)), self.rows["outcome"][0]
        first, own = rows.filter(tolerance=tolerance), self.rows.filter(tolerance=tolerance)
        table = self.table.filter(tolerance=tolerance)
        means = first.select(pl.col("certain_mass", *VERDICTS).mean()).row(0, named=True)
        pairs = own.filter(_ORDERED)
        numbers = {
            "rows": len(first),
            "weights": len(table),
            **means,
            "pinned": int(table["pinned"].sum()),
            "mean_width": float(table.select(views.WIDTH.mean()).item() or 0),
            "certified_tops": own["certified_top"].count(),
            "certified_pairs": pairs.select(_PAIRS).item() if len(pairs) else None,
            **{f"certain_mass at {name}": mass for name, mass in masses.items()},
        }
        lines = [
            *self._claimed(tolerance),
            *self._sourced(tolerance),
            f"With {self._kept(own)} the same, {exactness(tolerance, outcome)}"
            f"{_FIRST_ORDER * (outcome in UNITS)}, {self._certain(first, table)}"
            + "".join(
                f"; {exactness(name, outcome)}, at least {_at_least(mass)}"
                for name, mass in [*masses.items()][1:]
            )
            + ".",
            *self._put_back(),
        ]
        if not own["simplex_nullity"].max() and tolerance == "0":
            lines.append(f"{ONLY_FEW}.")
        elif len(lines) < _SENTENCES:
            large, small = (_percent(means[verdict]) for verdict in VERDICTS[:2])
            lines.append(
                f"Determined, kept within a tenth, is {large} of the attention on keys with a large share of "
                f"{self._added}, and {small} on keys with a small one."
            )
        certain = f"of the attention stays on the same keys in every alternative{_FIRST_ORDER * (outcome in UNITS)}"
        shares = [
            (
                _percent(means[verdict]),
                f"is {verdict.replace(',', ', on keys with a')} of the output",
            )
            for verdict in VERDICTS[:2]
        ]
        free = means[VERDICTS[2]] + means[VERDICTS[3]]
        headline = (
            (_at_least(means["certain_mass"]), certain),
            *shares,
            (_percent(free), "is not determined: it could be more than a tenth larger or smaller"),
        )
        return Finding("\n".join(lines[:_SENTENCES]), numbers, headline)

    def _claimed(self, tolerance: str) -> Iterator[str]:
        """Yield the first claim with its mean value, ends and verdicts."""
        claims = self.claims.filter(tolerance=tolerance)
        claims = claims.filter(~_SOURCE) if len(self.parts) else claims
        for row in claims.head(1).iter_rows(named=True):
            rows = claims.filter(claim=row["claim"])
            value, lo, hi = rows.select(pl.col("value", "lo", "hi").mean()).row(0)
            counts = [
                f"; {verdict}" + f" in {some_of(count, len(rows), 'row')}" * (len(rows) > 1)
                for verdict, count in rows["verdict"].drop_nulls().value_counts(sort=True).rows()
            ]
            keys = rows["keys"].unique()
            named = f" ({shortened(keys[0] or _NONE, _COUNTED)})" * (len(keys) == 1)
            more = f" (the first of {claims['claim'].n_unique()} claims)"
            yield (
                f"Claim {row['claim']!r}{more * (claims['claim'].n_unique() > 1)}: {row['subject']}{named} is "
                f"{value:z.3g}{' on average' * (len(rows) > 1)}, and {span(lo, hi, 'z.3g')} in the alternatives"
                f"{''.join(counts)}."
            )

    def _sourced(self, tolerance: str) -> Iterator[str]:
        """Yield the first logit with its largest source among the heads and keys looked at."""
        if not len(self.parts):
            return
        logit = self.parts.filter(part="logit").row(0, named=True)
        at = {name: logit[name] for name in ("text", "query")}
        own = self.claims.filter(_SOURCE, tolerance=tolerance, **at)
        most = own.sort(pl.col("value").abs(), maintain_order=True).row(-1, named=True)
        rows = self.rows.filter(tolerance=tolerance)
        what = "The logit of"
        if logit["source"] == DIRECTION:
            what = "The last hidden state along"
        yield (
            f"{what} {logit['source']} after {unmarked(logit['query_token'])!r} is {logit['value']:.3f}; its largest "
            f"direct source among these heads and keys is {most['keys'].rpartition('times ')[2]} by {head_name(most)}: "
            f"{most['value']:z.3f}, and {span(most['lo'], most['hi'], 'z.3f')} in the alternatives. In "
            f"{some_of(rows['certified_source'].count(), len(rows), 'row')} it is certain which source is the largest."
        )

    def _put_back(self) -> Iterator[str]:
        """Yield what the farthest alternatives change in the model, where that is known to first order."""
        put = self.rows.filter(pl.col("allowed") > 0, pl.col("predicted") > 0)
        put = put.drop_nulls("measured").with_columns(
            ratio=pl.col("measured") / pl.col("predicted")
        )
        if not len(put):
            return
        beyond = len(put.filter(pl.col("measured") > pl.col("allowed")))
        cast: Any = put["cast"].max() or 0.0
        yield (
            "Put into the model, the farthest alternatives changed the outcome by "
            f"{span(put['ratio'].min(), put['ratio'].max(), '.2f')} times what the first order predicts"
            + f", in {some_of(beyond, len(put), 'row')} by more than the tolerance allows"
            * (beyond > 0)
            + f"; single precision alone changes it by {upper(cast, '.2g')}" * (cast > 1e-6)
            + "."
        )

    def _kept(self, rows: pl.DataFrame) -> str:
        """Return what stays the same in some rows, in words; of an answer where, if it is the same in all of them."""
        said = rows["answer"].unique()
        return (said[0] if len(said) == 1 else None) or OUTCOMES[rows["outcome"][0]]

    def _certain(self, rows: pl.DataFrame, table: pl.DataFrame) -> str:
        """Return what of some rows is certain, with the key that keeps most of a single one."""
        mass: Any = rows["certain_mass"].mean()
        small = self.rows.filter(
            pl.col("allowed") > pl.col("effect"), tolerance=rows["tolerance"][0]
        )
        beyond = f", which do less than this tolerance allows in {some_of(len(small), len(rows), 'row')},"
        least = rows.sort("certain_mass", maintain_order=True).row(0, named=True)
        who = f"{len(rows):,} rows{beyond * (len(small) > 0)}"
        largest = f" on average, least for {_name(least)}: {_at_least(least['certain_mass'])}"
        if len(rows) == 1:
            who = _name(least) + beyond.partition(" in ")[0] * (len(small) > 0)
            most = table.sort("lo", descending=True).row(0, named=True)
            largest = (
                f", most on {unmarked(most['token'])!r} (key {most['key']}), which keeps at least "
                f"{_at_least(most['lo'])} and brings {_percent(most['norm_share'])} of {self._added}"
            ) * (most["lo"] >= 0.005)
        share = "all" if mass > 1 - PIN_TOLERANCE else f"at least {_at_least(mass)}"
        if mass <= PIN_TOLERANCE:
            share = "none"
        return f"{share} of the attention of {who} is certain to stay on its keys{largest}"

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the weights of a single row, for the first tolerance; else the first rows, verdicts by their signs."""
        rows, first = self.by_query(), self.table["tolerance"][0]
        if rows.n_unique(views.ROW[:-1]) > 1:
            shown = views.in_short(rows.head(views.LINES))
            return {f"Attention by verdict in percent, {len(shown)} of {len(rows)} rows": shown}
        weights = views.weights_in_short(self.table.filter(tolerance=first))
        radius = "radius: the largest change of the outcome at which the verdict still holds"
        return {f"Weights and verdicts, tolerance {first}; {radius}": weights}

    def token_lines(self, most: int = views.SHOWN) -> list[TokenLine]:
        """Return the first rows as lines of tokens marked by verdict."""
        return views.token_lines(self.table, most, self.rows["outcome"][0])

    def charts(self) -> dict[str, AnyChart]:
        """Return ``intervals``, ``axes`` (certainty and influence), ``claims`` and ``certain_by_head``.

        The third is there for claims and sources, the last for several heads.
        """
        charts = {
            "intervals": views.bars(self.table, self.order, views.PRINTED),
            "axes": views.axes(self.table),
        }
        if len(self.claims):
            charts["claims"] = views.claimed(self.claims)
        heads = self.by_head()
        if heads.n_unique(_HEAD) > 1:
            charts["certain_by_head"] = views.certain_by_head(heads)
        return charts

    def sections(self) -> list[Section]:
        """Return the lines of tokens, the charts and the tables."""
        by_query, charts = self.by_query(), self.charts()
        lines, shown = self.token_lines(views.LINES), views.within_page(self.table)
        first = "The first {} of " + f"{len(by_query)} rows are here."
        bars = views.bars(self.table, self.order)
        text = *_BARS, *normed_heads(self.provenance["model"])
        axes = [name for name in ("axes", "certain_by_head") if name in charts]
        claims = self.claims.drop("kind", "query", "outcome", "subject")
        sections = [
            Section(
                "lines",
                "The text, marked by verdict",
                _LINES,
                lines=lines,
                note=first.format(len(lines)) if len(lines) < len(by_query) else "",
            ),
            Section(
                "intervals",
                "Intervals and shares",
                text,
                [bars],
                note=first.format(shown.select(views.ROW).n_unique())
                if len(shown) < len(self.table)
                else "",
            ),
            Section("axes", "Determined does not mean important", _AXES, axes),
        ]
        if len(claims):
            sections.append(Section("claims", "Claims", _CLAIMS, ["claims"], claims))
        if len(self.parts):
            sections.append(Section("parts", "The logit and its parts", _PARTS, frame=self.parts))
        return [
            *sections,
            Section("cite", "How to cite a claim or a row", list(self._cited())),
            Section("heads", "Heads in numbers", frame=self.by_head()),
            Section("rows", "Rows in numbers", _ROUNDED, frame=by_query),
            Section("weights", "Weights in numbers", frame=self.table),
        ]

    @property
    def _added(self) -> str:
        outcome = self.rows["outcome"][0]
        if outcome in UNITS:
            return f"what all keys do to {OUTCOMES[outcome]}, to first order"
        return "what all keys add to the head's output, by vector length"

    def _cited(self) -> Iterator[str]:
        """Yield the citation of the first claims, or of the first rows where there are none."""
        run, rows = citation(self.provenance), self.claims if len(self.claims) else self.by_query()
        for row in rows.head(_CITED).iter_rows(named=True):
            if "claim" in row:
                interval = f"between {lower(row['lo'], '.4f')} and {upper(row['hi'], '.4f')}"
                verdict = row["verdict"] or "no verdict"
                said = f"claim “{row['claim']}”: {row['value']:.4f}, {interval}, {verdict}"
            else:
                said = f"certain mass {lower(row['certain_mass'], '.4f')}"
            yield (
                f"{run} {head_name(row).capitalize()}, query {row['query']} ({unmarked(row['query_token'])!r}); "
                f"{self._kept(self.rows.filter(text=row['text'])).rstrip(',')} kept "
                f"{exactness(row['tolerance'], row['outcome'])}"
                f"{_FIRST_ORDER * (row['outcome'] in UNITS)}; {said}."
            )


def _name(row: Row) -> str:
    return f"{unmarked(row['query_token'])!r} (query {row['query']}, layer {row['layer']}, head {row['head']})"


def _percent(share: Any) -> str:
    return f"{100 * share:.0f} %"


def _at_least(share: Any) -> str:
    """Return a proven lower bound in percent, never rounded up; with two decimals near 0 and 1."""
    digits = 0 if 0.01 <= share <= 0.99 else 2
    return f"{lower(100 * share, f'.{digits}f')} %"


_FIRST_ORDER = " (to first order)"
_HEAD = ["kind", "layer", "head"]
_CITED = 6
"""Claims, or rows, whose citation a page has."""

OUTCOMES = {
    "head": "the head's output",
    "layer": "the sum of all heads' outputs, which enters the residual stream,",
    "states": "the model's final hidden states",
    "prediction": "the model's prediction",
}
"""What stays the same, in words, by outcome."""

_NONE = "no key: the row does not see it, or not to its end"
_COUNTED = 200
"""Characters in which the keys of a claim are named."""

_ORDERED = pl.col("certified_pairs").is_not_null()
_SOURCE = pl.col("claim").str.contains(r"^key \d+ → ")
_PAIRS = pl.col("certified_pairs").sum() / pl.max_horizontal(1, pl.col("pairs").sum())
_SENTENCES = 3
_LINES = (
    "Every line is the attention of one query: the tokens that it sees with their weights, marked by the answers to "
    "two questions. Determined: does every alternative with the same outcome keep the weight within a tenth of its "
    "value? If not, it is not determined: its interval says how far it can move. Large share: is what the key adds to "
    "the output, by norm, at least as much as keys add on average? Negligible: a small share, and in every "
    "alternative less than half the weight that each key would have if attention were even.",
)
_BARS = (
    f"A row is drawn with its {views.KEYS} largest weights. Every bar runs over all values that a weight can take "
    "while the outcome, and the sum of the row, stay the same and no weight is negative. The dot is the weight itself, "
    "the upright tick the key's norm share: the length of what it adds, over the sum of all such lengths. A weight is "
    "pinned when its bar is a point.",
    "The order of two keys is certain when the same one has the larger weight in every alternative. Where the order "
    "was certified, choose a key to see which others are certain to have more weight, or less.",
)
_ROUNDED = (
    "In sentences proven lower bounds are rounded down to whole per cent (near 0 and 1 to hundredths of one). Tables "
    "and other shares are rounded to the nearest, so that shares of one whole may not add up to 100 %.",
)
_CLAIMS = (
    "A claim is a weighted sum of the weights of a row: lo and hi are its proven ends over all alternatives, the "
    "radius is the largest change of the outcome up to which the verdict is proven. A certificate is a file with the "
    "numbers of the proof: identilens check FILE computes the ends again, without model or solver.",
)
_PARTS = (
    "With the scale of the final norm frozen, a logit is the sum of these parts. What a head adds in all is the same "
    "in every alternative with exactly its output; how it divides among keys is not.",
)
_AXES = (
    "The horizontal axis is the part of a weight that every alternative keeps. The vertical axis is what its key adds "
    "to the output: 1 is the mean over all keys. A weight can be high on one axis and low on the other.",
)
