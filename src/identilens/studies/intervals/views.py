"""How intervals of attention weights are drawn."""

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl
import torch

from identilens.charts.cells import heat, token_map
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose, intervals
from identilens.charts.labels import shortened, visible_text
from identilens.runs.tables import HEAD
from identilens.studies.head_views import choose_head, choose_kind, file_name, head_name, numbered, of_whole_groups

CELLS = 40_000
"""Weights whose intervals travel inside a page (about 170 characters each)."""

MOST_ROWS = 12
"""Single rows drawn for print: those with the widest interval."""

MAP_CELLS = 250_000
"""Cells of the maps drawn for print."""

ROW = [*HEAD, "query"]
WIDTH = (pl.col("hi") - pl.col("lo")).alias("width")

_LABEL = 22
_PIXELS = 17
_STATES = ["pinned", "not pinned", "the chosen key", "certainly above it", "certainly below it", "order not certain"]
_STATE = """compared === null ? (datum.pinned ? 'pinned' : 'not pinned')
    : datum.key === compared ? 'the chosen key'
    : indexof(datum.above, ',' + compared + ',') >= 0 ? 'certainly above it'
    : indexof(datum.below, ',' + compared + ',') >= 0 ? 'certainly below it' : 'order not certain'"""


def widest_rows(table: pl.DataFrame, positions: pl.DataFrame) -> AnyChart:
    """Return the bars of the rows with the widest intervals, one chosen at a time."""
    widths = table.group_by(ROW).agg(WIDTH.max()).sort("width", *ROW, descending=True).head(MOST_ROWS)
    rows = widths.drop("width").with_row_index("row")
    tokens = _tokens(positions, "query")
    names = {
        row["row"]: f"{head_name(row)}, query {row['query']} {tokens[row['text'], row['kind'], row['query']]}"
        for row in rows.iter_rows(named=True)
    }
    drawn = table.join(rows, on=ROW, maintain_order="right").sort("row", "weight", descending=[False, True])
    return choose(_bars(drawn, positions, "row"), "row", "Row", names)


def every_row(table: pl.DataFrame, positions: pl.DataFrame, order: pl.DataFrame) -> AnyChart:
    """Return the bars of every row, chosen by head and query, which tell the certified order beside a chosen key."""
    drawn, heads = numbered(within_page(table).join(_compared(order), on=[*ROW, "key"], how="left"))
    drawn = drawn.with_columns(pl.col("above", "below").fill_null(","))
    widest = drawn.sort(WIDTH, descending=True).row(0, named=True)
    queries, keys = (_choices(drawn, positions, side) for side in ("query", "key"))
    chart = choose_head(_bars(drawn, positions, "above", "below"), heads, widest["head_number"])
    chart = choose(chart, "query", "Query", {at: queries[at] for at in (widest["query"], *queries)})
    options = {"options": [None, *keys], "labels": ["no key", *keys.values()]}
    compared = alt.param(name="compared", value=None, bind=alt.binding_select(name="Compare with key ", **options))
    color = alt.Color("state", type="nominal", title="Weight").scale(domain=_STATES)
    return _each(chart, lambda layer: layer.transform_calculate(state=_STATE).encode(color=color)).add_params(compared)


def within_page(table: pl.DataFrame) -> pl.DataFrame:
    """Return the weights of the first rows, as many as a page contains."""
    return of_whole_groups(table, ROW, CELLS)


def width_by_head(heads: pl.DataFrame) -> AnyChart:
    """Return the mean width of an interval by layer and head, over all texts."""
    mean = heads.group_by("kind", "layer", "head").agg(pl.col("mean_width").mean()).sort("kind", "layer", "head")
    chart = heat(
        mean, "head", "layer", "mean_width", domain=(0, max(1e-6, *mean["mean_width"])), x_title="Head",
        y_title="Layer", color_title="Mean width", title="Mean width of an interval by head",
    )  # fmt: skip
    return choose_kind(chart, mean)


def width_maps(table: pl.DataFrame, positions: pl.DataFrame) -> dict[str, AnyChart]:
    """Return the width of every interval of a head by query and key, where more than one of its rows was bounded."""
    several = table.filter(pl.col("query").n_unique().over(list(HEAD)) > 1)
    names = {side: _tokens(positions, side) for side in ("query", "key")}
    maps = {}
    for _, rows in of_whole_groups(several, list(HEAD), MAP_CELLS).group_by(list(HEAD), maintain_order=True):
        first = rows.row(0, named=True)
        here = first["text"], first["kind"]
        queries = rows["query"].unique().sort().to_list()
        keys = [name for (*where, _), name in names["key"].items() if tuple(where) == here]
        widths = torch.full((len(queries), len(keys)), torch.nan, dtype=torch.float64)
        at = rows.select(pl.col("query").replace_strict(queries, list(range(len(queries)))), "key").to_torch()
        widths[at[:, 0], at[:, 1]] = rows.select(WIDTH).to_torch()[:, 0]
        maps[f"widths_{file_name(first)}"] = token_map(
            widths, [names["query"][*here, query] for query in queries], keys, head_name(first).capitalize(),
            side=360, value_title="Width of the interval",
        )  # fmt: skip
    return maps


def _bars(table: pl.DataFrame, positions: pl.DataFrame, *more: str) -> AnyChart:
    """Return the bars of all rows, keys ordered by weight or position, to `choose` by further columns."""
    tokens = _tokens(positions, "key")
    names = [
        f"{shortened(tokens[text, kind, key], _LABEL)} · {key}"
        for text, kind, key in table.select("text", "kind", "key").iter_rows()
    ]
    state = pl.when("pinned").then(pl.lit("pinned")).otherwise(pl.lit("not pinned"))
    columns = ["key", "weight", "lo", "hi", "pinned", "effective", "minimum_norm", "query", *more]
    columns += ["head_number"] if "head_number" in table.columns else []
    drawn = table.select(*columns, pl.Series("label", names, dtype=pl.String), state=state)
    longest = int(table.group_by(ROW).len()["len"].max())  # pyright: ignore[reportArgumentType] a number of rows
    chart = intervals(
        drawn, "label", "lo", "hi", "weight", "state", also=("lo", "hi", "effective", "minimum_norm"),
        root_x=True, x_title="Attention weight and its interval, by square root", color_title="Weight",
        height=_PIXELS * longest + 10, title="Intervals of the weights of one query",
    )  # fmt: skip
    bind = alt.binding_select(options=["weight", "key"], labels=["by weight", "by position"], name="Order of keys ")
    by = alt.param(name="order", value="weight", bind=bind)
    place = "order === 'weight' ? -datum.weight : datum.key"
    sort = alt.EncodingSortField(field="place", op="min")
    return _each(
        chart, lambda layer: layer.transform_calculate(place=place).encode(y=layer.encoding.y.sort(sort))
    ).add_params(by)


def _each(chart: Any, change: Callable[[Any], Any]) -> Any:
    changed = chart.copy(deep=False)
    changed.layer = [change(layer) for layer in chart.layer]
    return changed


def _tokens(positions: pl.DataFrame, side: str) -> dict[tuple[int, str, int], str]:
    """Return what stands at each position of a side, by text, kind and position."""
    rows = positions.filter(side=side).sort("text", "kind", "position")
    return {
        (text, kind, position): visible_text(token)
        for text, kind, position, token in rows.select("text", "kind", "position", "token").iter_rows()
    }


def _choices(table: pl.DataFrame, positions: pl.DataFrame, side: str) -> Mapping[Any, str]:
    """Return the positions of a table with their tokens, which are left out where texts differ in them."""
    tokens: dict[int, set[str]] = {}
    for (_, _, position), token in _tokens(positions, side).items():
        tokens.setdefault(position, set()).add(token)
    places = table[side].unique().sort().to_list()
    return {at: f"{at}: {shortened(next(iter(tokens[at])), 40)}" if len(tokens[at]) == 1 else str(at) for at in places}


def _compared(order: pl.DataFrame) -> pl.DataFrame:
    """Return, for each key of a row, the keys that it certainly stands above and below, between commas."""
    sides = []
    for key, other in (("above", "below"), ("below", "above")):
        joined = pl.format(",{},", pl.col(other).cast(pl.String).str.join(",")).alias(f"of_{key}")
        sides.append(order.group_by(*ROW, pl.col(key).alias("key")).agg(joined))
    both = sides[0].join(sides[1], on=[*ROW, "key"], how="full", coalesce=True)
    return both.rename({"of_above": "above", "of_below": "below"})
