"""The result of bounding rollouts: values, ends and ranks, and maps that reach the ends."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Unpack

import altair as alt
import polars as pl
from torch import Tensor

from identilens.charts.encoding import (
    MOST_MARKS,
    AnyChart,
    Look,
    base_chart,
    field,
    inline,
    layered,
)
from identilens.charts.kit import Charts, choose, intervals
from identilens.charts.labels import lower, shortened, upper, visible_text
from identilens.charts.packing import BITS
from identilens.charts.page import Section
from identilens.charts.thumbnails import picture
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine, first_tokens
from identilens.charts.viewer import MAP_BUDGET, TokenMap, map_characters
from identilens.errors import InputError
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.models.substitution import Address
from identilens.models.token_names import unmarked
from identilens.runs.matrices import Matrices, MatrixKey
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Columns, Row, ends, percent, some_of
from identilens.studies.outcomes import FEW_KEYS, WITHIN, normed_heads

_ROW: Columns = {
    "text": pl.Int64,
    "query": pl.Int64,
    "query_token": pl.String,
    "tolerance": pl.String,
}
_PLACE = ["text", "query", "tolerance"]
_COVER, _PANEL = "#d55e00", 140
_LINES, _SHOWN, _CELLS, _DRAWN, _PICTURES = 24, 3, 5_000, 40, 12
"""Lines of tokens in a page, in a terminal, values to draw bars of, bars of a row, and pictures."""

PATCH = re.compile(r"patch (\d+),(\d+)")
"""Name of a position that is a part of a picture: its row and column."""


def picture_key(text: int) -> str:
    """Return the name of the matrix with the picture that a text is."""
    return f"text{text}.picture"


def end_maps(matrices: Matrices, text: int, name: str) -> dict[Address, Tensor]:
    """Return the maps of all heads of a text that have a name."""
    keys = {one: MatrixKey.parse(one) for one in matrices}
    return {
        (key.layer, key.head, key.kind): matrices[one]  # pyright: ignore[reportReturnType] of a kind
        for one, key in keys.items()
        if key and (key.text, key.name) == (text, name)
    }


_FIXED = (
    (pl.col("hi") <= (1 + WITHIN) * pl.col("value"))
    & (pl.col("lo") >= (1 - WITHIN) * pl.col("value"))
).alias("fixed")
_WIDTH = (pl.col("hi") - pl.col("lo")).alias("width")
_MARKS = {
    True: Mark("determined, within a tenth", "●", 0, True),
    False: Mark("not determined", "△", 1),
}


@dataclass(frozen=True, kw_only=True)
class Rollouts(Result):
    """Attention rollout between proven ends: what it may be while every head's output stays the same.

    Attributes:
        table: One row for each query, target and tolerance: ``value``; ``lo`` and ``hi``, the proven ends; ``rank``
            among the tokens that the query can see (1 is the largest), ``highest_rank`` and ``lowest_rank`` that an
            alternative can give it. The last two are missing where only some targets were asked for, without order.
        rows: One row for each query: its largest token, whether that is ``certified`` to be the largest in every
            alternative, and the ``gap``, the largest distance between an end and a value that maps were found for.
        witnesses: One row for each target and end whose maps were saved: by how much of its length any layer's hidden
            states ``moved`` when these maps were put into the model, in all heads at once.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> found = idl.rollout(lens, "Nobody came in the end.", queries=3, targets=1, witnesses=True, tolerance="1%")
        >>> sorted(found.witness(0, 1, "hi"))[:2]
        [(0, 0, 'encoder'), (0, 1, 'encoder')]
    """

    analysis: ClassVar = "rollout"
    title: ClassVar = "What attention rollout may be"
    schema: ClassVar = {
        "table": {
            **_ROW,
            "target": pl.Int64,
            "token": pl.String,
            "value": pl.Float64,
            "lo": pl.Float64,
            "hi": pl.Float64,
            "rank": pl.Int64,
            "highest_rank": pl.Int64,
            "lowest_rank": pl.Int64,
        },
        "rows": {
            **_ROW,
            "tokens": pl.Int64,
            "largest": pl.Int64,
            "token": pl.String,
            "certified": pl.Boolean,
            "gap": pl.Float64,
        },
        "witnesses": {
            "text": pl.Int64,
            "tolerance": pl.String,
            "target": pl.Int64,
            "token": pl.String,
            "end": pl.String,
            "moved": pl.Float64,
        },
    }
    keys: ClassVar = {
        "table": [*_PLACE, "target"],
        "rows": _PLACE,
        "witnesses": ["text", "target", "end"],
    }

    rows: pl.DataFrame
    witnesses: pl.DataFrame

    def witness(self, text: int, target: int, end: Literal["lo", "hi"]) -> dict[Address, Tensor]:
        """Return maps of all heads that give one end of a target's value at every query, for `Lens.substitute`.

        Raises:
            InputError: If they were not saved.
        """
        found = end_maps(self.matrices, text, f"{end}{target}")
        if not found:
            raise InputError(
                f"there are no maps for end {end!r} of target {target} of text {text}; run with witnesses=True "
                "(--witnesses), name the target by its position, and the end as 'lo' or 'hi'."
            )
        return found

    def summary(self) -> Finding:
        """Return the widest interval, and how many values and orders are fixed, for the first tolerance."""
        tolerance, *others = self.table["tolerance"].unique(maintain_order=True).to_list()
        table = self.table.filter(tolerance=tolerance)
        widest = table.sort(_WIDTH, maintain_order=True).row(-1, named=True)
        sums = table.select(_WIDTH.mean(), pl.col("value").mean(), _FIXED.sum())
        width, value, fixed = sums.row(0)
        same = "with every head's output unchanged"
        if tolerance != "0":
            same = f"with every head's output changed by at most {tolerance}, {_HELD},"
        among = f" Of {len(table):,} intervals this is the widest." if len(table) > 1 else ""
        none = f"No other maps change any of {len(table):,} values of rollout {same}. {FEW_KEYS}"
        lines = [
            none
            if widest["hi"] - widest["lo"] < PIN_TOLERANCE
            else f"In the row of {unmarked(widest['query_token'])!r} (query {widest['query']}, text {widest['text']}), "
            f"rollout gives {unmarked(widest['token'])!r} (token {widest['target']}) {widest['value']:.4f}; {same} it "
            f"may be anything from {lower(widest['lo'], 'z.4f')} to {upper(widest['hi'], 'z.4f')}.{among}",
            f"Determined, kept within a tenth of its value by every alternative: {some_of(fixed, len(table), 'value')} "
            f"({percent(fixed / len(table))}). The mean value is {value:.4f}, the mean width of an interval "
            f"{width:.4f}.",
        ]
        certified = self.rows.filter(tolerance=tolerance)["certified"].drop_nulls()
        if len(certified):
            lines.append(
                f"In {some_of(certified.sum(), len(certified), 'row')} the largest token is so in every "
                "alternative."
            )
        if len(self.witnesses):
            lines.append(
                f"The maps that reach the ends of {len(self.witnesses) // 2:,} targets, put into the model, moved no "
                f"layer's hidden states by more than {self.witnesses['moved'].max():.1e} of their length."
            )
        for other in others:
            wider = self.table.filter(tolerance=other).select(_WIDTH.mean()).item()
            lines.append(
                f"At the tolerance {other} of each head's output, the mean width is {wider:.4f}, {_HELD}."
            )
        lines += [_TRADE, *normed_heads(self.provenance["model"])]
        numbers = {
            "values": len(table),
            "fixed": fixed,
            "mean_value": value,
            "mean_width": width,
            "widest": widest["hi"] - widest["lo"],
            "certified_largest": int(certified.sum()) if len(certified) else None,
        }
        words = "of the values are determined: no alternative moves them by more than a tenth"
        headline = [(percent(fixed / len(table)), words)]
        if len(certified):
            share = percent(int(certified.sum()) / len(certified))
            headline.append((share, "of the queries have a certified largest token"))
        return Finding("\n".join(lines), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the widest intervals."""
        found = self.table.sort(_WIDTH, descending=True, maintain_order=True).head(10)
        query = pl.format("{} {}", "query", "query_token").alias("query")
        ranks = pl.format("{}–{}", "highest_rank", "lowest_rank").alias("may be")
        numbers = [pl.col("value").round(4), *ends(4)]
        shown = found.select("text", query, "tolerance", "target", "token", *numbers, "rank", ranks)
        return {"Widest intervals": shown}

    def token_lines(self, most: int = _SHOWN) -> list[TokenLine]:
        """Return the first rows as lines of tokens, each with its value in percent, marked where it is fixed."""
        lines = []
        for _, row in self.table.group_by(_PLACE, maintain_order=True):
            if len(lines) == most:
                break
            marked = row.with_columns(_FIXED)
            title, shown = first_tokens(_row_name(row.row(0, named=True)), marked)
            sums = dict(marked.group_by("fixed").agg(pl.col("value").sum()).iter_rows())
            tokens = [
                MarkedToken(
                    one["token"],
                    _MARKS[one["fixed"]],
                    f"{100 * one['value']:.1f}",
                    f"{one['value']:.4f}, between {lower(one['lo'], 'z.4f')} and {upper(one['hi'], 'z.4f')}",
                )
                for one in shown.iter_rows(named=True)
            ]
            legend = [
                (mark, f"{100 * sums.get(fixed, 0.0):.0f} % of rollout")
                for fixed, mark in _MARKS.items()
            ]
            lines.append(TokenLine(title, tokens, legend))
        return lines

    def charts(self) -> Charts:
        """Return ``intervals``, value and ends of each target.

        Where the text is a picture and all its patches are targets, ``pictures`` has the same on the picture.
        """
        return {"intervals": self._intervals()} | self._pictures

    @cached_property
    def _pictures(self) -> Charts:
        if self.provenance["settings"]["targets"] is not None:
            return {}
        shown = self.table.with_columns(
            pl.col("token").str.extract(PATCH.pattern, group).cast(pl.Int64).alias(name)
            for group, name in ((1, "down"), (2, "across"))
        ).drop_nulls(["down", "across"])
        found = [one for one in shown["text"].unique() if picture_key(one) in self.matrices]
        shown = shown.filter(pl.col("text").is_in(found))
        if shown.is_empty():
            return {}
        # As many as leave no cell out of the chart: three for each patch of a row.
        patches = max(shown.group_by(_PLACE).len()["len"].to_list())
        rows = (
            shown.select(list(_ROW))
            .unique(maintain_order=True)
            .head(max(1, min(_PICTURES, MOST_MARKS // (3 * patches))))
            .with_row_index("row")
        )
        cells = rows.join(shown, on=_PLACE, maintain_order="left")
        cells = cells.unpivot(
            ["lo", "value", "hi"],
            index=["row", "down", "across"],
            variable_name="end",
            value_name="rollout",
        ).with_columns(pl.col("end").replace({"lo": "least", "value": "rollout", "hi": "most"}))
        addresses = {one: picture(self.matrices[picture_key(one)]) for one in found}
        drawn = rows.select("row", address=pl.col("text").replace_strict(addresses))
        chart = _on_pictures(
            cells,
            "end",
            ("down", "across"),
            "rollout",
            drawn,
            "address",
            x_title="",
            title="Rollout on the picture, between the least and the most that it may be",
        )
        titles = {one["row"]: _row_name(one) for one in rows.iter_rows(named=True)}
        return {"pictures": choose(chart, "row", "Row", titles) if len(titles) > 1 else chart}

    def _intervals(self) -> AnyChart:
        shown = self.table.head(_CELLS)
        names = shown.select(_PLACE).unique(maintain_order=True).with_row_index("row")
        frame = shown.join(names, on=_PLACE, maintain_order="left").with_columns(_FIXED)
        frame = frame.filter(pl.col("value").rank("ordinal", descending=True).over("row") <= _DRAWN)
        titles = {}
        for one in frame.unique("row", maintain_order=True).iter_rows(named=True):
            titles[one["row"]] = _row_name(one)
        labels = [
            f"{shortened(visible_text(token), 22)} · {target}"
            for token, target in frame.select("token", "target").rows()
        ]
        states = (
            pl.when("fixed")
            .then(pl.lit("determined"))
            .otherwise(pl.lit("not determined"))
            .alias("state")
        )
        longest = int(frame.group_by("row").len()["len"].max())  # pyright: ignore[reportArgumentType]
        chart = intervals(
            frame.select("row", "value", "lo", "hi", states, label=pl.Series(labels)),
            "label",
            "lo",
            "hi",
            "value",
            "state",
            root_x=True,
            color_title="Value",
            x_title="Rollout and its interval, by square root",
            height=17 * longest + 10,
            title="What rollout may be in one row",
        )
        return choose(chart, "row", "Row", titles) if len(titles) > 1 else chart

    def sections(self) -> list[Section]:
        """Return the lines of tokens, the bars and the tables."""
        lines, maps = self.token_lines(_LINES), self.notebook_maps()
        pictures = []
        if self._pictures:
            pictures = [Section("pictures", "The picture", [_PICTURE], ["pictures"])]
        return [
            *pictures,
            Section("lines", "The text, marked by what is determined", [_TEXT], lines=lines),
            Section("intervals", "Intervals", [_BARS], ["intervals"]),
            *(
                [
                    Section(
                        "witnesses",
                        "Maps that reach the ends",
                        [_MAPS],
                        frame=self.witnesses,
                        maps=maps,
                    )
                ]
                if maps
                else []
            ),
            Section("rows", "Rows in numbers", frame=self.rows),
            Section("values", "Values in numbers", frame=self.table),
        ]

    def notebook_maps(self) -> list[TokenMap]:
        """Return the maps of the model beside those that reach both ends of each target, as far as a page has room."""
        left, maps = MAP_BUDGET, []
        targets = self.witnesses.group_by("text", "target", "token", maintain_order=True)
        for (text, target, token), rows in targets:
            raw, *ends = (
                end_maps(self.matrices, text, one) for one in ("raw", f"lo{target}", f"hi{target}")
            )  # pyright: ignore[reportArgumentType]
            moved = dict(rows.select("end", "moved").iter_rows())
            note = (
                f"The maps of all heads with the least and the largest rollout to {token!r} (token {target}), put into "
                f"the model, moved no layer's hidden states by more than {moved['lo']:.1e} and {moved['hi']:.1e} of "
                "their length"
            )
            [names] = self.tokens[text].values()
            for head, own in raw.items():
                left -= map_characters(3 * BITS * own.numel()) + len(note)
                if left < 0:
                    return maps
                layers = {"raw": own, "least": ends[0][head], "most": ends[1][head]}
                choices = {
                    "text": text,
                    "layer": head[0],
                    "head": head[1],
                    "target": f"{target} {token}",
                }
                apart = {f"{end} − raw": (end, "raw") for end in ("least", "most")}
                interest = float((layers["most"] - layers["least"]).abs().sum())
                maps.append(TokenMap(choices, layers, names, names, f"{note}.", apart, interest))
        return maps


def _row_name(row: Row) -> str:
    return f"text {row['text']}, query {row['query']} {unmarked(row['query_token'])!r}, tolerance {row['tolerance']}"


_HELD = "weights and values of later layers held as they are"
_TRADE = (
    "Where heads can trade outputs (stacked_rank of an audit below heads times d_v), the model's hidden states fix "
    "less than the output of each head does."
)
_TEXT = (
    "Every line is the rollout of one query, in percent. A value is determined if every choice of maps that leaves the "
    "output of every head the same keeps it within a tenth of itself."
)
_MAPS = (
    "Raw is the map of the model. Least and most are the maps with the least and the largest rollout to the target, "
    "for all rows at once, while every head's output stays the same, up to the tolerance. The ends are reached by the "
    "maps of all heads together."
)
_PICTURE = (
    "One row of the rollout on the picture that the model read: left the least that each patch may have while every "
    "head's output stays the same, up to the tolerance, right the most, and between them the rollout of the model's "
    "own weights. The ends of all patches are not reached at once: each has maps of its own."
)
_BARS = (
    "The point is the value of the rollout, the bar all values that it has in some alternative: both ends are proven, "
    "and reached by maps up to the gap in the table of rows. Of a row at most the "
    f"{_DRAWN} largest values are drawn, in the order of the text; the table below has all."
)


def _on_pictures(
    frame: pl.DataFrame,
    panel: str,
    place: tuple[str, str],
    value: str,
    pictures: pl.DataFrame,
    picture: str,
    **look: Unpack[Look],
) -> alt.LayerChart:
    """Return cells on top of a picture, a panel for each value of ``panel``: the larger a value, the more is covered.

    Args:
        frame: A row for each cell.
        panel: The column that tells panels apart.
        place: The columns with the row and the column of a cell in the picture.
        value: The values, from 0 up.
        pictures: A row for each picture, with the columns that it can be chosen by.
        picture: The column with the picture's address.
        look: Words; see `Look`.
    """
    panels = frame[panel].unique(maintain_order=True).to_list()
    look = Look(height=_PANEL) | look
    look["also"] = (*place, value, *look.get("also", ()))
    base = base_chart(frame, panel, place[0], grouped="xy", **look)
    base.encoding.y["axis"] = None
    base.encoding.x["axis"]["labelAngle"] = 0
    base.encoding.x["scale"] = alt.Scale(paddingInner=0.03, paddingOuter=0)
    cells = base.mark_rect(color=_COVER).encode(
        xOffset=alt.XOffset(field(place[1]), type="ordinal", scale=alt.Scale(padding=0)),
        opacity=alt.Opacity(
            field(value),
            type="quantitative",
            title=look.get("color_title", value),
            scale=alt.Scale(domain=[0, float(f"{frame[value].max():.2g}")], range=[0, 0.85]),
            legend=alt.Legend(orient="bottom"),
        ),
    )
    rows = [{**one, panel: name} for one in pictures.iter_rows(named=True) for name in panels]
    below = alt.Chart(inline([{field(name): one[name] for name in one} for one in rows]))
    below = below.mark_image(
        aspect=False, width=alt.expr("bandwidth('x')"), height=alt.expr("height")
    ).encode(
        x=base.encoding.x,
        y=alt.value(alt.expr("height / 2")),
        url=alt.Url(field(picture), type="nominal"),
    )
    whole = layered([cells, below])
    whole.layer.reverse()
    # The page makes the panels square.
    whole["usermeta"] = {"panels": len(panels)}
    return whole
