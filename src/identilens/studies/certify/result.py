"""The result of certifying rows of attention: intervals, shares, verdicts and the order of keys."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.labels import lower, shortened, upper
from identilens.charts.page import LINK, Section, citation
from identilens.charts.token_lines import TokenLine
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.models.token_names import unmarked
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, percent, some_of, span
from identilens.studies.certify import views
from identilens.studies.certify.rows import ROW, SCHEMA, VERDICTS
from identilens.studies.head_views import head_name
from identilens.studies.outcomes import BRINGS, ONLY_FEW, PARKED, UNITS, exactness, normed_heads


@dataclass(frozen=True, kw_only=True)
class Certainty(Result):
    """Which attention weights are determined by an outcome, up to which tolerance, and what their keys bring to it.

    Attributes:
        table: Weight, interval, share of the output and verdict: one row for each tolerance, query and visible key.
        rows: What is certain of each query's row as a whole, for each tolerance.
        claims: Value, interval and verdict of each claim on a row, for each tolerance, with the radius of the verdict
            and the file of the certificate; empty unless there are claims.
        order: The pairs of keys whose order is the same in every alternative; empty unless it was asked for.

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
        """Return claims and the finding for the first tolerance, and how much of it is left for the others."""
        rows = self.by_query().with_columns(determined=pl.sum_horizontal(VERDICTS[:2]))
        groups = rows.group_by("tolerance", maintain_order=True)
        means = groups.agg(pl.col("certain_mass", "determined").mean())
        shares = {name: rest for name, *rest in means.iter_rows()}
        tolerance, *others = shares
        outcome = self.rows["outcome"][0]
        part = replace(
            self,
            table=self.table.filter(tolerance=tolerance),
            rows=self.rows.filter(tolerance=tolerance),
        )
        finding = part._of_one_tolerance(OUTCOMES[outcome], exactness(tolerance, outcome))
        lines = [*self._claimed(), finding.text]
        if others:
            left = [
                f"{_at_least(shares[one][0])} ({exactness(one, outcome)}; {_percent(shares[one][1])} is "
                f"determined){self._beyond(one)}"
                for one in others
            ]
            lines.append(
                f"At other tolerances of the outcome, at least this much stays on the same keys: {'; '.join(left)}."
            )
        lines += self._put_back()
        lines += part._of_effects()
        lines += normed_heads(self.provenance["model"])
        mass = {f"certain_mass at {name}": one for name, (one, _) in shares.items()}
        return Finding("\n".join(lines), {**finding.numbers, **mass}, finding.headline)

    def _put_back(self) -> Iterator[str]:
        """Yield what the farthest alternatives change in the model, where that is known to first order."""
        put = self.rows.filter(pl.col("allowed") > 0).drop_nulls("measured")
        # Where nothing is predicted, the row does nothing to the outcome.
        ratio = (pl.col("measured") / pl.col("predicted")).alias("ratio")
        ratios = put.filter(pl.col("predicted") > 0).select(ratio)["ratio"]
        if not len(ratios):
            return
        beyond = put.filter(pl.col("measured") > pl.col("allowed"))
        more = ""
        if len(beyond):
            most = (beyond["measured"] / beyond["allowed"]).max()
            more = (
                f" In {some_of(len(beyond), len(put), 'row')} that is more than the tolerance allows, up to "
                f"{upper(most, '.3g')} times as much."
            )
        cast: Any = put["cast"].max() or 0
        single = f", in single precision, which by itself changes it by {cast:.2g}" * (cast > 1e-6)
        yield (
            f"The intervals are certified to first order only{single}. Put into the model, the farthest alternatives "
            f"changed the outcome by {span(ratios.min(), ratios.max(), '.2f')} times what the first order predicts; "
            "where that is far from 1, the intervals may not hold in the model: below 1, other weights with the same "
            f"outcome can lie outside of them.{more}"
        )

    def _of_effects(self) -> Iterator[str]:
        """Yield what the outcome loses without the rows, of one tolerance, and which outcome that is."""
        effects = self.rows["effect"].drop_nulls().to_list()
        if not effects:
            return
        kept, row = self._kept(self.rows), self.rows.row(0, named=True)
        elsewhere = (
            f" That is not the prediction of the row's own token: for it, pass --answer {row['query']} (in Python: "
            f"answer={row['query']})."
        ) * (
            " after " in kept
            and f"(position {row['query']})" not in kept
            and row["kind"] != "encoder"
            and self.provenance["settings"].get("answer") is None
            and len(effects) == 1
        )
        yield (
            f"A row's effect, the change of {kept} when the head adds nothing in it, is "
            f"{sum(effects) / len(effects):.3g} ({UNITS[row['outcome']]}){' on average' * (len(effects) > 1)}; "
            f"identilens influence measures what each head does to the answer.{elsewhere}"
        )

    def _beyond(self, tolerance: str) -> str:
        """Return in words which rows do less than a tolerance allows, where there are any."""
        rows = self.rows.filter(tolerance=tolerance)
        small = rows.filter(pl.col("allowed") > pl.col("effect"))
        if not len(small):
            return ""
        if len(rows) > 1:
            return f": this tolerance is larger than all that the row does, in {some_of(len(small), len(rows), 'row')}"
        row = small.row(0, named=True)
        return f": this tolerance is larger than all that the row does ({row['effect']:.3g} {UNITS[row['outcome']]})"

    def _kept(self, rows: pl.DataFrame) -> str:
        """Return what stays the same in some rows, in words; of an answer where, if it is the same in all of them."""
        said = rows["answer"].unique()
        return (said[0] if len(said) == 1 else None) or OUTCOMES[rows["outcome"][0]]

    def _of_one_tolerance(self, outcome: str, exact: str) -> Finding:
        rows = self.by_query()
        means = rows.select(pl.col("certain_mass", *VERDICTS).mean()).row(0, named=True)
        shares = [
            f"{_percent(means[verdict])} is {verdict.replace(',', ', on keys with a')}"
            + _SMALL * (verdict == VERDICTS[-1])
            for verdict in VERDICTS
            if means[verdict] >= 0.005
        ]
        first = self._of_one_row(rows.row(0, named=True)) if len(rows) == 1 else self._of_rows(rows)
        pinned = int(self.table["pinned"].sum())
        share = percent(pinned / len(self.table))
        fixed = f"Pinned, the same in every alternative: {some_of(pinned, len(self.table), 'weight')} ({share})."
        few = f" {ONLY_FEW}." * (self.rows["simplex_nullity"].max() == 0 and exact == "exactly")
        to_first_order = _FIRST_ORDER * (self.rows["outcome"][0] in UNITS)
        tops = self.rows["certified_top"].count()
        ordered = self.rows.filter(_ORDERED)
        pairs = int(ordered["certified_pairs"].sum()) / max(1, int(ordered["pairs"].sum()))
        kept = f"; {percent(pairs)} of all pairs of keys keep their order in every alternative"
        lines = [
            f"With {self._kept(self.rows)} the same, {exact}{to_first_order}, {first}.{few}",
            f"Alternatives are all weights that leave {outcome} the same, {exact}. A weight is determined, and "
            "counts in full, if every alternative keeps it within a tenth of its value. A key has a "
            f"large share if it brings at least an even share of {self._added}.",
            f"{'On average, of' if len(rows) > 1 else 'Of'} the attention (in rounded shares) {'; '.join(shares)}.",
            *self._parked(),
            *[fixed] * (pinned > 0),
            "It is certain which key has the largest weight (the same in every alternative) in "
            f"{some_of(tops, len(rows), 'row')}{kept if len(ordered) else ''}.",
        ]
        numbers = {
            "rows": len(rows),
            "weights": len(self.table),
            **means,
            "pinned": pinned,
            "mean_width": float(self.table.select(views.WIDTH.mean()).item() or 0),
            "certified_tops": tops,
            "certified_pairs": pairs if len(ordered) else None,
        }
        headline = (
            (
                _at_least(means["certain_mass"]),
                f"of the attention stays on the same keys in every alternative{to_first_order}",
            ),
            (
                _percent(means[VERDICTS[0]]),
                "is determined, on keys with a large share of the output",
            ),
            (
                _percent(means[VERDICTS[1]]),
                "is determined, on keys with a small share of the output",
            ),
            (
                _percent(means[VERDICTS[2]] + means[VERDICTS[3]]),
                "is not determined: with the same outcome it could be more than a tenth larger or smaller",
            ),
        )
        return Finding("\n".join(lines), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the weights of a single row, for the first tolerance; else the first rows, verdicts by their signs."""
        rows = self.by_query()
        if rows.n_unique(views.ROW[:-1]) > 1:
            first = views.in_short(rows.head(views.LINES))
            more = "the report marks the text of other rows, too"
            return {
                f"Attention by verdict in percent, {len(first)} of {len(rows)} rows; {more}": first
            }
        names = self.table["tolerance"].unique(maintain_order=True).to_list()
        tables = [views.weights_in_short(self.table.filter(tolerance=name)) for name in names]
        # Tolerances whose numbers are the same, as they are printed, share the table.
        same = [name for name, one in zip(names, tables, strict=True) if one.equals(tables[0])]
        more = f" (in the report {len(names) - len(same)} more)" * (len(names) > len(same))
        radius = "radius: the largest change of the outcome at which the verdict still holds"
        return {f"Weights and verdicts, tolerance {' and '.join(same)}{more}; {radius}": tables[0]}

    def token_lines(self, most: int = views.SHOWN) -> list[TokenLine]:
        """Return the first rows as lines of tokens marked by verdict."""
        return views.token_lines(self.table, most, self.rows["outcome"][0])

    def charts(self) -> dict[str, AnyChart]:
        """Return ``intervals``, ``axes`` (certainty against influence), ``certain_by_head`` and ``widths_...``.

        The third is there for several heads, the last for each head with several rows.
        """
        charts = {
            "intervals": views.bars(self.table, self.order, views.PRINTED),
            "axes": views.axes(self.table),
        }
        heads = self.by_head()
        charts |= (
            {"certain_by_head": views.certain_by_head(heads)} if heads.n_unique(_HEAD) > 1 else {}
        )
        return charts | views.width_maps(self.table)

    def sections(self) -> list[Section]:
        """Return the lines of tokens, the bars, both axes and the tables."""
        by_query, heads = self.by_query(), self.by_head()
        lines = self.token_lines(views.LINES)
        left_out = (
            f"The first {len(lines)} lines. In Python, "
            f"Certainty.load(folder).token_lines({len(by_query)}) has them all."
        )
        shown = views.within_page(self.table)
        places = ["text", "layer", "head", "kind", "query_token", "tolerance"]
        claims = self.claims.select(
            "claim", *places, "keys", "value", "lo", "hi", "verdict", "radius", LINK
        )
        some = f"The first {shown.select(views.ROW).n_unique()} of {len(by_query)} rows are here to choose from."
        return [
            Section(
                "lines",
                "The text, marked by verdict",
                _LINES,
                lines=lines,
                note=left_out if len(lines) == views.LINES < len(by_query) else "",
            ),
            Section(
                "intervals",
                "Intervals and shares",
                _BARS,
                [views.bars(self.table, self.order)],
                note=some if len(shown) < len(self.table) else "",
            ),
            Section(
                "axes",
                "Determined does not mean important",
                _AXES,
                ["axes", *(["certain_by_head"] if heads.n_unique(_HEAD) > 1 else [])],
            ),
            *([Section("claims", "Claims", _CLAIMS, frame=claims)] if len(claims) else []),
            Section("cite", "How to cite a claim or a row", list(self._cited())),
            Section("heads", "Heads in numbers", frame=heads),
            Section("rows", "Rows in numbers", _ROUNDED, frame=by_query),
            Section("weights", "Weights in numbers", frame=self.table),
        ]

    @property
    def _added(self) -> str:
        outcome = self.rows["outcome"][0]
        if outcome in UNITS:
            return f"what all keys do to {OUTCOMES[outcome]}, to first order"
        return "what all keys add to the head's output, by vector length"

    def _of_one_row(self, row: Row) -> str:
        most = self.table.sort("lo", descending=True).row(0, named=True)
        largest = (
            f"; the most on {unmarked(most['token'])!r} (key {most['key']}), which keeps at least "
            f"{_at_least(most['lo'])} of the row and brings {_percent(most['norm_share'])} of {self._added}"
        )
        kept = f"{_certain(row['certain_mass'])} of {_name(row)} is certain to stay on its keys"
        return kept + largest * (most["lo"] >= 0.005) + self._beyond(row["tolerance"])

    def _of_rows(self, rows: pl.DataFrame) -> str:
        least, most = rows.sort("certain_mass", maintain_order=True)[[0, -1]].rows(named=True)
        low, high = _at_least(least["certain_mass"]), _at_least(most["certain_mass"])
        several = rows["text"].n_unique() > 1
        names = [_name(one) + f" of text {one['text']}" * several for one in (least, most)]
        ends = f": {low} for {names[0]} to {high} for {names[1]}" if low != high else ""
        mean = _certain(rows["certain_mass"].mean())
        ends += self._beyond(least["tolerance"])
        return f"{mean} of {len(rows):,} rows is certain to stay on its keys on average{ends}"

    def _parked(self) -> Iterator[str]:
        little = pl.col("norm_share") < BRINGS / PARKED * pl.col("weight")
        even = (1 / pl.len().over(list(ROW))).alias("even")
        # Where no key adds anything, none adds less than others.
        adding = pl.col("norm_share").sum().over(list(ROW)) > 0
        parked = self.table.with_columns(even).filter(pl.col("weight") >= _PARKED, little, adding)
        for row in parked.sort("weight").tail(1).iter_rows(named=True):
            rows = parked.select(ROW.keys()).n_unique()
            many = f" {rows:,} of {len(self.rows):,} rows park attention on some key."
            large = (
                f": more than an even share ({percent(row['even'])}), but far less than its weight"
            ) * (row["norm_share"] > row["even"])
            yield (
                f"Attention is parked: {unmarked(row['token'])!r} (key {row['key']}) has {_percent(row['weight'])} of "
                f"the attention of {_name(row)}, and brings {'only ' * (not large)}"
                f"{_percent(row['norm_share'])} of {self._added}{large}.{many * (len(self.rows) > 1)}"
            )

    def _claimed(self) -> Iterator[str]:
        places = ["claim", "outcome", "tolerance"]
        for (claim, outcome, tolerance), rows in self.claims.group_by(places, maintain_order=True):
            value, lo, hi = rows.select(pl.col("value", "lo", "hi").mean()).row(0)
            verdicts = rows["verdict"].drop_nulls().value_counts(sort=True).iter_rows()
            counts = [
                f"; {verdict}" + f" in {some_of(count, len(rows), 'row')}" * (len(rows) > 1)
                for verdict, count in verdicts
            ]
            mean = " on average" if len(rows) > 1 else ""
            keys = rows["keys"].unique()
            named = f" ({shortened(keys[0] or _NONE, _COUNTED)})" * (len(keys) == 1)
            yield (
                f"Claim {claim!r}: {rows['subject'][0]}{named} is {value:z.3g}{mean}, and {span(lo, hi, 'z.3g')} in "
                f"the alternatives that keep {self._kept(self.rows).rstrip(',')} {exactness(tolerance, outcome)}"
                f"{_FIRST_ORDER * (outcome in UNITS)}{self._beyond(tolerance)}"
                f"{''.join(counts)}."
            )

    def _cited(self) -> Iterator[str]:
        """Yield the citation of the first claims, or of the first rows where there are none."""
        run, rows = citation(self.provenance), self.claims if len(self.claims) else self.by_query()
        if len(rows) > _CITED:
            yield f"The first {_CITED} of {len(rows):,}; the others are cited alike."
        for row in rows.head(_CITED).iter_rows(named=True):
            said = (
                f"claim “{row['claim']}”: {row['value']:.4f}, between {lower(row['lo'], '.4f')} and "
                f"{upper(row['hi'], '.4f')}, "
                f"{row['verdict'] or 'no verdict'}"
                if "claim" in row
                else f"certain mass {lower(row['certain_mass'], '.4f')}"
            )
            yield (
                f"{run} {head_name(row).capitalize()}, query {row['query']} ({unmarked(row['query_token'])!r}); "
                f"{self._kept(self.rows.filter(text=row['text'])).rstrip(',')} kept "
                f"{exactness(row['tolerance'], row['outcome'])}"
                f"{_FIRST_ORDER * (row['outcome'] in UNITS)}; {said}."
            )


def _certain(mass: Any) -> str:
    share = "all" if mass > 1 - PIN_TOLERANCE else f"at least {_at_least(mass)}"
    return f"{share if mass > PIN_TOLERANCE else 'none'} of the attention"


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
_PARKED = 0.1
"""A key with less of a row is not named, though its share of the norms is less than a fifth of its weight."""

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
_SMALL = " (small in every alternative, whether it is fixed or not)"
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
_AXES = (
    "The horizontal axis is the part of a weight that every alternative keeps. The vertical axis is what its key adds "
    "to the output: 1 is the mean over all keys. A weight can be high on one axis and low on the other.",
)
