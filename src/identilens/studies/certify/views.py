"""How verdicts on attention weights are drawn: lines of tokens, bars with shares, both axes."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from identilens.charts.cells import heat
from identilens.charts.encoding import AnyChart, on_field
from identilens.charts.kit import choose, choose_present, intervals, rule, scatter
from identilens.charts.labels import lower, shortened, upper, visible_text
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine, first_tokens
from identilens.runs.tables import HEAD, Row, ends
from identilens.studies.certify.rows import VERDICTS
from identilens.studies.head_views import choose_kind, head_name, of_whole_groups
from identilens.studies.outcomes import exactness

ROW = [*HEAD, "query", "tolerance"]
WIDTH = (pl.col("hi") - pl.col("lo")).alias("width")

SHOWN = 1
"""Lines of tokens in a terminal and a notebook."""

LINES = 24
"""Lines of tokens in a page."""

PRINTED = 12
"""Rows whose bars are drawn for print."""

KEYS = 40
"""Keys of a row whose bars are drawn, those with the largest weights."""

CELLS = 20_000
"""Weights whose intervals, and heads whose means, travel inside a page."""

SIGNS = "●○▲△·"
"""Signs of the verdicts, for readers who cannot tell the colours apart."""

_MARKS = {
    verdict: Mark(verdict, sign, series, strong)
    for verdict, sign, series, strong in zip(
        VERDICTS, SIGNS, (0, 0, 1, 1, None), (True, False, True, False, False), strict=True
    )
}
_DETERMINACY = ["determined", "not determined", "negligible"]
_COMPARED = ["the chosen key", "certainly above it", "certainly below it", "order not certain"]
_STATE = """compared === null ? datum.determinacy
    : datum.key === compared ? 'the chosen key'
    : indexof(datum.above, ',' + compared + ',') >= 0 ? 'certainly above it'
    : indexof(datum.below, ',' + compared + ',') >= 0 ? 'certainly below it' : 'order not certain'"""
_LABEL = 22


def token_lines(table: pl.DataFrame, most: int, outcome: str) -> list[TokenLine]:
    """Return the first rows as lines of tokens, each with its weight in percent and marked by its verdict."""
    first = table.select(ROW).unique(maintain_order=True).head(most)
    shown, lines = table.join(first, on=ROW, how="semi", maintain_order="left"), []
    for _, row in shown.group_by(ROW, maintain_order=True):
        at = row.row(0, named=True)
        name = _row_name(at, f"outcome kept {exactness(at['tolerance'], outcome)}")
        title, tokens = first_tokens(name, row)
        mass = dict(row.group_by("verdict").agg(pl.col("weight").sum()).iter_rows())
        legend = [(_MARKS[verdict], _percent(mass.get(verdict, 0.0))) for verdict in VERDICTS]
        lines.append(TokenLine(title, list(map(_marked, tokens.iter_rows(named=True))), legend))
    return lines


def in_short(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows for a terminal: shares in percent, verdicts by the signs of the lines."""
    shares = [
        (100 * pl.col(verdict)).round().cast(pl.Int64).alias(mark.sign)
        for verdict, mark in _MARKS.items()
    ]
    # A proven bound is not rounded up.
    certain = (100 * pl.col("certain_mass") + 1e-6).floor().cast(pl.Int64).alias("certain")
    query = pl.format("{} {}", "query", "query_token").alias("query")
    return rows.select(*HEAD, query, "tolerance", certain, *shares)


def weights_in_short(row: pl.DataFrame) -> pl.DataFrame:
    """Return the weights of a row for a terminal, largest first, verdicts by the signs of the lines."""
    sign = pl.col("verdict").replace({verdict: mark.sign for verdict, mark in _MARKS.items()})
    shares = [
        pl.col("weight").round(3),
        *ends(3),
        pl.col("radius", "norm_share", "contribution", "removal").round(3),
    ]
    return row.sort("weight", descending=True, maintain_order=True).select(
        sign.alias(""), "token", "key", *shares
    )


_ALSO = (
    "lo",
    "hi",
    "radius",
    "norm_share",
    "contribution",
    "removal",
    "effective",
    "minimum_norm",
    "verdict",
)
"""Columns that a chart of intervals shows beside them."""


def bars(table: pl.DataFrame, order: pl.DataFrame, rows: int | None = None) -> AnyChart:
    """Return the interval of each weight with its key's norm share; of several rows, one is chosen at a time.

    Where the order of keys was certified, a key is chosen to see which others certainly stand above or below it.
    """
    shown = within_page(table)
    numbers = (
        shown.select(ROW).unique(maintain_order=True).head(rows or len(shown)).with_row_index("row")
    )
    drawn = _classified(shown.join(numbers, on=ROW)).join(
        _compared(order), on=[*ROW, "key"], how="left"
    )
    drawn = drawn.with_columns(pl.col("above", "below").fill_null(","))
    drawn = drawn.sort("row", "weight", descending=[False, True])
    drawn = drawn.group_by("row", maintain_order=True).head(KEYS)
    labels = [
        f"{shortened(visible_text(token), _LABEL)} · {key}"
        for token, key in drawn.select("token", "key").rows()
    ]
    frame = drawn.select(
        "row",
        "key",
        "weight",
        *_ALSO,
        "determinacy",
        "above",
        "below",
        label=pl.Series(labels, dtype=pl.String),
    )
    longest = int(drawn.group_by("row").len()["len"].max())  # pyright: ignore[reportArgumentType] a number of rows
    chart = intervals(
        frame,
        "label",
        "lo",
        "hi",
        "weight",
        "determinacy",
        also=_ALSO,
        root_x=True,
        color_title="Weight",
        x_title="Attention weight, its interval, and norm share (tick), by square root",
        height=17 * longest + 10,
        title="Intervals of the largest weights of a query, with norm shares",
    )
    sort = alt.EncodingSortField(field="place", op="min")
    color = alt.Color("state", type="nominal", title="Weight")
    domain = [*_DETERMINACY, *(_COMPARED if len(order) else [])]
    span, point = (
        layer.transform_calculate(
            place="order === 'weight' ? -datum.weight : datum.key", state=_STATE
        ).encode(y=layer.encoding.y.sort(sort), color=color.scale(domain=domain))
        for layer in chart.layer
    )
    tick = point.mark_tick(thickness=2.5, opacity=1, size=12).encode(
        x=on_field(point.encoding.x, "norm_share")
    )
    chart.layer = [span, point, tick]
    names = {
        row["row"]: _row_name(row, f"tolerance {row['tolerance']}")
        for row in drawn.unique("row", maintain_order=True).iter_rows(named=True)
    }
    return _with_choices(chart, drawn, names, certified=len(order) > 0)


def _with_choices(
    chart: AnyChart, drawn: pl.DataFrame, names: Mapping[Any, str], *, certified: bool
) -> AnyChart:
    """Return a chart of intervals with its row, the order of keys, and a key to compare with, to choose."""
    if len(names) > 1:
        chart = choose(chart, "row", "Row", names)
    else:
        chart = chart.properties(title=alt.Title(chart.title, subtitle=list(names.values())))
    by = alt.binding_select(
        options=["weight", "key"], labels=["by weight", "by position"], name="Order of keys "
    )
    keys = {
        key: f"{key}: {token}"
        for key, token in drawn.unique("key").sort("key").select("key", "token").rows()
    }
    options = {"options": [None, *keys], "labels": ["no key", *map(visible_text, keys.values())]}
    with_key = (
        alt.binding_select(name="Compare with key ", **options) if certified else alt.Undefined
    )
    return chart.add_params(
        alt.param(name="order", value="weight", bind=by),
        alt.param(name="compared", value=None, bind=with_key),
    )


def claimed(claims: pl.DataFrame) -> AnyChart:
    """Return value and interval of the claims and sources with the largest values, for the first tolerance."""
    first = claims.filter(pl.col("tolerance") == pl.col("tolerance").first())
    drawn = first.sort(pl.col("value").abs(), descending=True, maintain_order=True).head(KEYS)
    labels = [
        f"{shortened(visible_text(row['claim']), _LABEL)} · {row['layer']}.{row['head']}, {row['query']}"
        for row in drawn.iter_rows(named=True)
    ]
    return intervals(
        drawn.select("keys", "value", "lo", "hi", label=pl.Series(labels, dtype=pl.String)),
        "label",
        "lo",
        "hi",
        "value",
        also=("keys",),
        x_title="Value, and its interval",
        height=17 * len(drawn) + 10,
        title="Claims and sources with the largest values (head as layer.head, query)",
    )


def axes(table: pl.DataFrame) -> AnyChart:
    """Return, for each weight above zero, the certain share of it against its key's share of the output."""
    shares = pl.col("norm_share") * pl.len().over(ROW)
    seen = within_page(table).with_columns(even_shares=shares).filter(pl.col("weight") > 0)
    frame = _classified(seen.with_columns(certain=pl.col("lo") / pl.col("weight"))).sort(
        "order", maintain_order=True
    )
    also = ("weight", "token", "query_token", "verdict")
    chart = scatter(
        frame.select("certain", "even_shares", "determinacy", "tolerance", *also),
        "certain",
        "even_shares",
        "determinacy",
        also=also,
        size=24,
        log_y=True,
        color_title="Weight",
        x_title="Share of the weight that is certain (lo / weight)",
        x_domain=(0, 1),
        y_title="Norm share, in even shares",
        title="Every weight on both axes",
    )
    classes = {
        name: chart.encoding[name]
        for name in ("color", "shape")
        if chart.encoding[name] is not alt.Undefined
    }
    chart = rule(
        chart.encode(**{name: one.scale(domain=_DETERMINACY) for name, one in classes.items()}),
        y=1,
        label="an even share",
    )
    return choose_present(chart, frame, "tolerance", "Tolerance")


def certain_by_head(heads: pl.DataFrame) -> AnyChart:
    """Return the mean certain mass by layer and head, of as many heads as a page contains."""
    heads = heads.head(CELLS)
    chart = heat(
        heads.select("kind", "layer", "head", "tolerance", "certain_mass"),
        "head",
        "layer",
        "certain_mass",
        domain=(0, 1),
        x_title="Head",
        y_title="Layer",
        color_title="Certain mass",
        title="Attention that is certain, by head",
    )
    return choose_present(choose_kind(chart, heads), heads, "tolerance", "Tolerance")


def within_page(table: pl.DataFrame) -> pl.DataFrame:
    """Return the weights of the first rows, as many as a page contains."""
    return of_whole_groups(table, ROW, CELLS)


def _marked(row: Row) -> MarkedToken:
    note = (
        f"key {row['key']}: weight {row['weight']:.4f}, in "
        f"[{lower(row['lo'], '.4f')}, {upper(row['hi'], '.4f')}]; "
        f"norm share {row['norm_share']:.4f}; {row['verdict']}"
    )
    mark = _MARKS[row["verdict"]]
    return MarkedToken(
        row["token"], mark, "" if mark.series is None else _percent(row["weight"]), note
    )


def _row_name(row: Row, kept: str) -> str:
    return f"{head_name(row)}: attention of {visible_text(row['query_token'])} (query {row['query']}), {kept}"


def _classified(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with what its verdicts say of the weights alone, in words and by their order."""
    determinacy = pl.col("verdict").str.split(",").list.first()
    return table.with_columns(
        determinacy=determinacy, order=determinacy.cast(pl.Enum(_DETERMINACY)).to_physical()
    )


def _compared(order: pl.DataFrame) -> pl.DataFrame:
    """Return, for each key of a row, the keys that it certainly stands above and below, between commas."""
    sides = []
    for key, other in (("above", "below"), ("below", "above")):
        joined = pl.format(",{},", pl.col(other).cast(pl.String).str.join(",")).alias(f"of_{key}")
        sides.append(order.group_by(*ROW, pl.col(key).alias("key")).agg(joined))
    return (
        sides[0]
        .join(sides[1], on=[*ROW, "key"], how="full", coalesce=True)
        .rename({"of_above": "above", "of_below": "below"})
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.005 else "<1 %"
