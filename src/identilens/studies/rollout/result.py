"""The result of bounding rollouts: values, ends and ranks, and maps that reach the ends."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import polars as pl
from torch import Tensor

from identilens.charts.kit import intervals
from identilens.charts.token_lines import Mark, TokenLine
from identilens.charts.viewer import TokenMap
from identilens.charts.views import View
from identilens.errors import InputError
from identilens.measures.attention.intervals import POINT
from identilens.models.substitution import Address
from identilens.models.token_names import unmarked
from identilens.runs.matrices import Matrices, MatrixKey
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Columns, decimals, ends, integers
from identilens.studies.head_views import marked_line
from identilens.studies.outcomes import WITHIN, exactness, normed_heads

_ROW: Columns = {
    "text": pl.Int64,
    "query": pl.Int64,
    "query_token": pl.String,
    "tolerance": pl.String,
}
_PLACE = ["text", "query", "tolerance"]
_LINES, _SHOWN, _CELLS, _DRAWN = 24, 3, 5_000, 40
"""Lines of tokens in a page, in a terminal, values that charts draw, and bars of a row."""

_NAME = pl.format(
    "text {}, query {} {}, tolerance {}", "text", "query", "query_token", "tolerance"
).alias("row")


def end_maps(matrices: Matrices, text: int, name: str) -> dict[Address, Tensor]:
    """Return the maps of all heads of a text that have a name."""
    keys = {label: MatrixKey.parse(label) for label in matrices}
    return {
        (key.layer, key.head, key.kind): matrices[label]  # pyright: ignore[reportReturnType] of a kind
        for label, key in keys.items()
        if key and (key.text, key.name) == (text, name)
    }


_FIXED = (pl.col("hi") <= (1 + WITHIN) * pl.col("value")) & (
    pl.col("lo") >= (1 - WITHIN) * pl.col("value")
)
_STATE = pl.when(_FIXED).then(pl.lit("determined")).otherwise(pl.lit("not determined"))
_WIDTH = (pl.col("hi") - pl.col("lo")).alias("width")
_HELD = ", and weights and values of later layers held as they are"
_FINDING = """\
With every head's output the same, {exactly}, no other maps change rollout ({pinned:value}). That is usual where rows \
see no more keys than a head's values have dimensions: take texts whose rows see more, or a larger tolerance \
(--tolerance 1%; in Python: tolerance=0.01).
In the row of {query_token!r} (query {query}, text {text}), rollout gives {token!r} (token {target}) {value:.4f}; with \
every head's output the same, {exactly}{held}, it may be from {lo:≥z.4f} to {hi:≤z.4f}, the widest of \
{values:interval}.
With that, {share:.1%} of the values are determined: every alternative keeps them within a tenth; the mean width of an \
interval is {width:.4f}.
In {certified} of {rows:row} the largest token is so in every alternative.
"""
_TILES = """\
{share:.1%} | of the values are determined: no alternative moves them by more than a tenth
{certified} of {rows} | queries have a certified largest token
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
_BARS = """\
The point is the value of the rollout, the bar all values that it has in some alternative: both ends are proven, and \
reached by maps up to the gap in the table of rows. Of a row at most the 40 largest values are drawn, in the order of \
the text.
"""
_MARKS = {
    "determined": Mark("determined, within a tenth", "●", 0, True),
    "not determined": Mark("not determined", "△", 1),
}


@dataclass(frozen=True, kw_only=True)
class Rollouts(Result):
    """Attention rollout between proven ends: what it may be while every head's output stays the same.

    Attributes:
        table: One row for each query, target and tolerance: ``value``; ``lo`` and ``hi``, the proven ends; ``rank``
            among the tokens that the query can see (1 is the largest), ``highest_rank`` and ``lowest_rank`` that an
            alternative can give it. The last two are missing where only some targets were asked for.
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
            **decimals("value", "lo", "hi"),
            **integers("rank", "highest_rank", "lowest_rank"),
        },
        "rows": {
            **_ROW,
            **integers("tokens", "largest"),
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
    words: ClassVar = {
        "value": "Rollout of the model's own weights",
        "lo": "Lo: proven least value in any alternative",
        "hi": "Hi: proven greatest value in any alternative",
        "row": "Row",
        "name": "Token",
        "state": "Value",
    }
    views: ClassVar = {
        "lines": View(
            title="The text, marked by what is determined", text=_TEXT, lines="page_lines"
        ),
        "intervals": View(
            intervals,
            ("name", "lo", "hi", "value", "state"),
            title="What rollout may be in one row",
            text=_BARS,
            table="bars",
            choices=("row",),
            look={"x_scale": "sqrt"},
        ),
        "rows": View(title="Rows in numbers", table="rows", listed=True),
        "witnesses": View(
            title="Maps that reach the ends",
            text=_MAPS,
            maps="notebook_maps",
            table="witnesses",
            listed=True,
        ),
    }

    rows: pl.DataFrame
    witnesses: pl.DataFrame

    def witness(self, text: int, target: int, end: Literal["lo", "hi"]) -> dict[Address, Tensor]:
        """Return maps of all heads that give one end of a target's value at every query, for `Lens.substitute`.

        Raises:
            InputError: If they were not saved.
        """
        maps = end_maps(self.matrices, text, f"{end}{target}")
        if not maps:
            raise InputError(
                f"there are no maps for end {end!r} of target {target} of text {text}; run with witnesses=True "
                "(--witnesses), name the target by its position, and the end as 'lo' or 'hi'."
            )
        return maps

    def summary(self) -> Finding:
        """Return the widest interval, and how many values and orders are fixed, for the first tolerance."""
        tolerance = self.table["tolerance"][0]
        table = self.table.filter(tolerance=tolerance)
        most = table.sort(_WIDTH, maintain_order=True).row(-1, named=True)
        certified = self.rows.filter(tolerance=tolerance)["certified"].drop_nulls()
        pinned = most["hi"] - most["lo"] < POINT
        most |= {name: unmarked(most[name]) for name in ("query_token", "token")}
        most |= dict.fromkeys(("lo", "hi")) if pinned else {}
        return Finding.of(
            _FINDING,
            _TILES,
            **most,
            exactly=exactness(tolerance),
            held="" if tolerance == "0" else _HELD,
            values=len(table),
            pinned=len(table) if pinned else None,
            width=table.select(_WIDTH.mean()).item(),
            share=table.select(_FIXED.mean()).item(),
            rows=len(certified) or None,
            certified=certified.sum(),
            moved=self.witnesses["moved"].max(),
            normed=normed_heads(self.provenance["model"]),
        )

    def token_lines(self) -> list[TokenLine]:
        """Return the first rows as lines of tokens, each with its value in percent, marked where it is fixed."""
        return self.page_lines(_SHOWN)

    def page_lines(self, most: int = _LINES) -> list[TokenLine]:
        """Return more rows as lines of tokens, for a page."""
        note = pl.format("{}, between {} and {}", pl.col("value").round(4), *ends(4))
        percent = pl.format("{}", (100 * pl.col("value")).round(1))
        rows = self.table.with_columns(_NAME, mark=_STATE, value=percent, note=note)
        legend = dict.fromkeys(_MARKS, "")
        return [
            marked_line(row["row"][0], row, _MARKS, legend)
            for row in rows.partition_by(_PLACE, maintain_order=True)[:most]
        ]

    def bars(self) -> pl.DataFrame:
        """Return the largest values of as many rows as a page contains, in the order of the text."""
        rank = pl.col("value").rank("ordinal", descending=True).over(_PLACE)
        rows = self.table.head(_CELLS).filter(rank <= _DRAWN)
        return rows.with_columns(_NAME, state=_STATE, name=pl.format("{} · {}", "token", "target"))

    def notebook_maps(self) -> list[TokenMap]:
        """Return the maps of the model beside those that reach both ends of each target."""
        maps = []
        targets = self.witnesses.select("text", "target", "token").unique(maintain_order=True)
        for text, target, token in targets.iter_rows():
            raw, least, most = (
                end_maps(self.matrices, text, name)
                for name in ("raw", f"lo{target}", f"hi{target}")
            )
            [names] = self.tokens[text].values()
            for head, weights in raw.items():
                layers = {"raw": weights, "least": least[head], "most": most[head]}
                interest = float((most[head] - least[head]).abs().sum())
                choices = {
                    "text": text,
                    "layer": head[0],
                    "head": head[1],
                    "target": f"{target} {token}",
                }
                maps.append(TokenMap(choices, layers, names, names, interest=interest))
        return maps
