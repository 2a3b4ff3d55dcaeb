"""The result of bounding rollouts: values, ends and ranks, and maps that reach the ends."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, Unpack

import altair as alt
import polars as pl
from torch import Tensor

from identilens.charts.encoding import (
    MOST_MARKS,
    Look,
    base_chart,
    field,
    inline,
    layered,
)
from identilens.charts.kit import Charts, choose_present, intervals
from identilens.charts.labels import rounded_end
from identilens.charts.packing import BITS
from identilens.charts.thumbnails import picture
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine, first_tokens
from identilens.charts.viewer import MAP_BUDGET, TokenMap, map_characters
from identilens.charts.views import View
from identilens.errors import InputError
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.models.substitution import Address
from identilens.models.token_names import unmarked
from identilens.runs.matrices import Matrices, MatrixKey
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Columns, Row
from identilens.studies.outcomes import WITHIN, normed_heads

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
_FINDING = """\
With every head's output {kept}, no other maps change any of {pinned:value} of rollout. That is usual where rows see \
no more keys than a head's values have dimensions: take a longer text, or a tolerance (--tolerance bfloat16,1%; in \
Python: tolerance=("bfloat16", 0.01)).
In the row of {query_token!r} (query {query}, text {text}), rollout gives {token!r} (token {target}) {value:.4f}; with \
every head's output {kept} it may be anything from {lo:≥z.4f} to {hi:≤z.4f}, the widest of {values:interval}.
With that, {share:.1%} of the values are determined: every alternative keeps them within a tenth; the mean width of an \
interval is {width:.4f}.
In {certified} of {rows:row} the largest token is so in every alternative.
"""
_TILES = """\
{share:.1%} | of the values are determined: no alternative moves them by more than a tenth
{certified_share:.1%} | of the queries have a certified largest token
"""
_TEXT = """\
Every line is the rollout of one query, in percent. A value is determined if every choice of maps that leaves the \
output of every head the same, up to the tolerance, keeps it within a tenth of itself.
Where heads can trade outputs (stacked_rank of an audit below heads times d_v), the model's hidden states fix less \
than the output of each head does.
{normed}
"""
_MAPS = """\
Raw is the map of the model. Least and most are the maps with the least and the largest rollout to the target, for all \
rows at once, while every head's output stays the same, up to the tolerance. The ends are reached by the maps of all \
heads together.
Put into the model, they moved no layer's hidden states by more than {moved:.1e} of their length.
"""
_PICTURE = """\
One row of the rollout on the picture that the model read: left the least that each patch may have while every head's \
output stays the same, up to the tolerance, right the most, and between them the rollout of the model's own weights. \
The ends of all patches are not reached at once: each has maps of its own.
"""
_BARS = """\
The point is the value of the rollout, the bar all values that it has in some alternative: both ends are proven, and \
reached by maps up to the gap in the table of rows. Of a row at most the 40 largest values are drawn, in the order of \
the text; the table below has the widest intervals.
"""
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

    views: ClassVar = {
        "pictures": View(title="The picture", text=_PICTURE, method="pictures"),
        "lines": View(
            title="The text, marked by what is determined", text=_TEXT, lines="page_lines"
        ),
        "intervals": View(
            title="Widest intervals", text=_BARS, method="intervals", table="widest", listed=True
        ),
        "witnesses": View(
            title="Maps that reach the ends",
            text=_MAPS,
            maps="notebook_maps",
            table="witnesses",
            listed=True,
        ),
        "rows": View(title="Rows in numbers", table="rows", listed=True),
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

    def widest(self) -> pl.DataFrame:
        """Return the values with the widest intervals."""
        return self.table.sort(_WIDTH, descending=True, maintain_order=True).head(_LINES)

    def summary(self) -> Finding:
        """Return the widest interval, and how many values and orders are fixed, for the first tolerance."""
        tolerance = self.table["tolerance"][0]
        table = self.table.filter(tolerance=tolerance)
        most = table.sort(_WIDTH, maintain_order=True).row(-1, named=True)
        sums = table.select(_WIDTH.mean(), _FIXED.sum(), mean_value=pl.col("value").mean())
        certified = self.rows.filter(tolerance=tolerance)["certified"].drop_nulls()
        names = ("text", "query", "target", "value", "lo", "hi")
        numbers = {name: most[name] for name in names} | sums.row(0, named=True)
        pinned = most["hi"] - most["lo"] < PIN_TOLERANCE
        if pinned:
            numbers |= {"lo": None, "hi": None}
        held = (
            f"changed by at most {tolerance}, weights and values of later layers held as they are"
        )
        return Finding.of(
            _FINDING,
            _TILES,
            **numbers,
            query_token=unmarked(most["query_token"]),
            token=unmarked(most["token"]),
            kept="unchanged" if tolerance == "0" else held,
            values=len(table),
            pinned=len(table) if pinned else None,
            share=numbers["fixed"] / len(table),
            rows=len(certified),
            certified=int(certified.sum()) if len(certified) else None,
            certified_share=certified.mean(),
            moved=self.witnesses["moved"].max(),
            normed=normed_heads(self.provenance["model"]),
        )

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
                    f"{one['value']:.4f}, between {rounded_end(one['lo'], 'z.4f', -1)} and "
                    f"{rounded_end(one['hi'], 'z.4f', 1)}",
                )
                for one in shown.iter_rows(named=True)
            ]
            legend = [
                (mark, f"{100 * sums.get(fixed, 0.0):.0f} % of rollout")
                for fixed, mark in _MARKS.items()
            ]
            lines.append(TokenLine(title, tokens, legend))
        return lines

    def page_lines(self) -> list[TokenLine]:
        """Return more rows as lines of tokens, for a page."""
        return self.token_lines(_LINES)

    def pictures(self) -> Charts:
        """Return ``pictures``: rollout on the picture that a text is, where all its patches are targets."""
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
        )
        rows = rows.with_columns(row=pl.Series(map(_row_name, rows.to_dicts())))
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
        return {"pictures": choose_present(chart, drawn, "row", "Row")}

    def intervals(self) -> Charts:
        """Return ``intervals``: the value and the ends of each target, for a row to choose."""
        shown = self.table.head(_CELLS)
        rank = pl.col("value").rank("ordinal", descending=True).over(_PLACE)
        rows = shown.filter(rank <= _DRAWN).with_columns(
            _FIXED.replace_strict({True: "determined", False: "not determined"}).alias("state"),
            name=pl.format("{} · {}", "token", "target"),
            row=pl.Series(map(_row_name, shown.filter(rank <= _DRAWN).to_dicts())),
        )
        columns = ("name", "lo", "hi", "value", "state")
        longest = max(rows.group_by("row").len()["len"].to_list())
        chart = intervals(
            rows.select(*columns, "row"),
            *columns,
            root_x=True,
            x_title="Rollout and its interval, by square root",
            height=17 * longest + 10,
            title="What rollout may be in one row",
        )
        return {"intervals": choose_present(chart, rows, "row", "Row")}

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
                f"Put into the model, the maps of all heads with the least and the largest rollout to {token!r} moved "
                f"no layer's hidden states by more than {max(moved.values()):.1e} of their length."
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
                maps.append(TokenMap(choices, layers, names, names, note, apart, interest))
        return maps


def _row_name(row: Row) -> str:
    return f"text {row['text']}, query {row['query']} {unmarked(row['query_token'])!r}, tolerance {row['tolerance']}"


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
