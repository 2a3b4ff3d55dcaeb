"""The result of asking which attention weights can be trusted: the verdicts, and what they add up to."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.page import Section
from identilens.charts.token_lines import TokenLine
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD
from identilens.studies.trust import views
from identilens.studies.trust.rows import COLUMNS, VERDICTS


@dataclass(frozen=True, kw_only=True)
class Trust(Result):
    """Which attention weights are determined by the head's output, and which influence it.

    Attributes:
        table: Weight, interval, influence and verdict: one row for each query and visible key.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.trust(lens, idl.examples()[0], layers=3, heads=9, queries=(10, 11))
        >>> result.by_query()
        shape: (2, 13)
        ┌──────┬───────┬──────┬─────────┬───┬────────────────┬────────────────┬───────────────┬────────────┐
        │ text ┆ layer ┆ head ┆ kind    ┆ … ┆ determined,    ┆ free,          ┆ free, little  ┆ negligible │
        │ ---  ┆ ---   ┆ ---  ┆ ---     ┆   ┆ little         ┆ influential    ┆ influence     ┆ ---        │
        │ i64  ┆ i64   ┆ i64  ┆ str     ┆   ┆ influence      ┆ ---            ┆ ---           ┆ f64        │
        │      ┆       ┆      ┆         ┆   ┆ ---            ┆ f64            ┆ f64           ┆            │
        │      ┆       ┆      ┆         ┆   ┆ f64            ┆                ┆               ┆            │
        ╞══════╪═══════╪══════╪═════════╪═══╪════════════════╪════════════════╪═══════════════╪════════════╡
        │ 0    ┆ 3     ┆ 9    ┆ encoder ┆ … ┆ 0.215482       ┆ 0.0            ┆ 0.11228       ┆ 0.045507   │
        │ 0    ┆ 3     ┆ 9    ┆ encoder ┆ … ┆ 0.508135       ┆ 0.011054       ┆ 0.068686      ┆ 0.042332   │
        └──────┴───────┴──────┴─────────┴───┴────────────────┴────────────────┴───────────────┴────────────┘
    """

    analysis: ClassVar = "trust"
    title: ClassVar = "Can each attention weight be trusted?"
    schema: ClassVar = {
        "table": {**HEAD, "query": pl.Int64, "query_token": pl.String, "token": pl.String, **COLUMNS},
    }
    keys: ClassVar = {"table": [*views.ROW, "key"]}

    def by_query(self) -> pl.DataFrame:
        """Return, for each row, its certain mass (Σ lo) and how much of its attention has each verdict."""
        verdicts = [pl.col("weight").filter(verdict=verdict).sum().alias(verdict) for verdict in VERDICTS]
        rows = self.table.group_by([*views.ROW, "query_token"], maintain_order=True)
        return rows.agg(pl.len().alias("keys"), pl.col("lo").sum().alias("certain_mass"), *verdicts)

    def by_head(self) -> pl.DataFrame:
        """Return the means over the rows of each head, by kind, layer and head."""
        heads = ["kind", "layer", "head"]
        return (
            self.by_query()
            .group_by(heads)
            .agg(pl.len().alias("rows"), pl.col("certain_mass", *VERDICTS).mean())
            .sort(heads)
        )

    def summary(self) -> Finding:
        """Return the finding: how much of the attention is certain, and how it falls on the verdicts."""
        rows = self.by_query()
        means = rows.select(pl.col("certain_mass", *VERDICTS).mean()).row(0, named=True)
        shares = [f"{_percent(means[verdict])} {verdict}" for verdict in VERDICTS if round(means[verdict], 3)]
        lead = "Its attention is" if len(rows) == 1 else "On average the attention is"
        first = self._of_one_row(rows.row(0, named=True)) if len(rows) == 1 else "".join(_of_rows(rows))
        numbers = {"rows": len(rows), "weights": len(self.table), **means}
        headline = (
            (_percent(means["certain_mass"]), "of the attention stays on the same keys in every alternative"),
            (_percent(means[VERDICTS[0]]), "is determined and influential"),
            (_percent(means[VERDICTS[1]]), "is determined, with little influence on the output"),
            (_percent(means[VERDICTS[2]] + means[VERDICTS[3]]), "is free: the same output allows other weights"),
        )
        return Finding(f"{first}\n{lead} {'; '.join(shares)}.", numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the weights of a single row; else the first rows, verdicts by their signs."""
        rows = self.by_query()
        if len(rows) > 1:
            first = views.in_short(rows.head(views.LINES))
            return {f"Attention by verdict in percent, {len(first)} of {len(rows)} rows": first}
        return {"Weights and verdicts": views.weights_in_short(self.table)}

    def token_lines(self, most: int = views.SHOWN) -> list[TokenLine]:
        """Return the first rows as lines of tokens marked by verdict."""
        return views.token_lines(self.table, most)

    def charts(self) -> dict[str, AnyChart]:
        """Return ``intervals``, ``axes`` (certainty against influence) and, of several heads, ``certain_by_head``."""
        charts = {"intervals": views.bars(self.table, views.PRINTED), "axes": views.axes(self.table)}
        heads = self.by_head()
        return charts | ({"certain_by_head": views.certain_by_head(heads)} if len(heads) > 1 else {})

    def sections(self) -> list[Section]:
        """Return the lines of tokens, the bars, both axes and the tables."""
        by_query, more = self.by_query(), ["certain_by_head"] if len(self.by_head()) > 1 else []
        rows = len(by_query)
        lines = self.token_lines(views.LINES)
        left_out = (
            f"The first {len(lines)} of {rows} rows. In Python, Trust.load(folder).token_lines({rows}) has them all."
        )
        shown = views.within_page(self.table)
        lines_note = left_out if len(lines) < rows else ""
        some = f"The first {shown.select(views.ROW).n_unique()} of {rows} rows are here to choose from."
        return [
            Section("lines", "The text, marked by verdict", _LINES, lines=lines, note=lines_note),
            Section(
                "intervals", "Intervals and influence", _BARS, [views.bars(self.table)],
                note=some if len(shown) < len(self.table) else "",
            ),
            Section("axes", "Determined is not influential", _AXES, ["axes", *more]),
            Section("rows", "Rows in numbers", frame=by_query),
            Section("weights", "Weights in numbers", frame=self.table),
        ]  # fmt: skip

    def _of_one_row(self, row: dict[str, Any]) -> str:
        certain = row["certain_mass"]
        at_least = f"At least {_percent(certain)} of the attention of {_name(row)}"
        first = f"{at_least} stays on the same keys in every alternative"
        if certain < 0.005:
            return f"{first}."
        most = self.table.sort("lo", descending=True).row(0, named=True)
        return (
            f"{first}; {_percent(most['lo'] / certain)} of that is on {most['token']!r}, which contributes "
            f"{_percent(most['norm_share'])} of the summed norms of the output."
        )


def _of_rows(rows: pl.DataFrame) -> Iterator[str]:
    ordered = rows.sort("certain_mass", maintain_order=True)
    mean = _percent(rows["certain_mass"].mean())
    yield f"On average at least {mean} of the attention of {len(rows)} queries stays on the same keys in every "
    yield "alternative: "
    ends = (ordered.row(at, named=True) for at in (0, -1))
    yield " to ".join(f"{_percent(row['certain_mass'])} for {_name(row)}" for row in ends) + "."


def _name(row: dict[str, Any]) -> str:
    return f"{row['query_token']!r} (query {row['query']}, layer {row['layer']}, head {row['head']})"


def _percent(share: Any) -> str:
    return f"{100 * share:.0f} %"


_LINES = (
    "Every line is the attention of one query: the tokens that it sees with their weights, marked by the answers to "
    "two questions. Determined: does every alternative with the same head output keep the weight within half of its "
    "value? If not, it is free. Influential: is what the key adds to the output, by norm, at least an even "
    "share of what all keys add? Negligible: not influential, and below half an even share in every alternative.",
)
_BARS = (
    "Every bar runs over all values that a weight can take while the head's output, and the sum of the row, stay "
    "the same and no weight is negative. The dot is the weight itself, the upright tick the key's norm "
    "share: the length of what it adds, over the sum of all such lengths.",
)
_AXES = (
    "To the right: the share of a weight that is the same in every alternative. Upwards: the influence of its "
    "key, in even shares. A weight can be high on one and low on the other.",
)
