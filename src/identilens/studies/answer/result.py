"""The result of measuring answers: attention by segment with proven ends, the answer marked by segments."""

from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import torch

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose_present, lines
from identilens.charts.page import Section
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine
from identilens.charts.viewer import TokenMap
from identilens.models.chats import SINK, SO_FAR, TEMPLATE
from identilens.runs.matrices import MatrixKey
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Columns, counted, percent
from identilens.studies.outcomes import exactness, normed_heads

_ROW: Columns = {
    "text": pl.Int64,
    "token": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "segment": pl.String,
}
_COLOURS, _LINES, _SHOWN = 8, 24, 3
"""Segments with a colour of their own, lines of tokens in a page, and in a terminal."""

_NOT_CONTENT = [TEMPLATE, SO_FAR, SINK]
"""Segments that nobody wrote for the model to read."""

_CONTENT = ~pl.col("segment").is_in(_NOT_CONTENT)

_OTHER = Mark("other segments", "·", None)


@dataclass(frozen=True, kw_only=True)
class Answers(Result):
    """Where the attention of answers lies, by segment of the conversation, and what of it is certain.

    Attributes:
        table: Attention ``mass`` of every token of the answer, layer, head and segment.
        intervals: For drawn rows and every tolerance: ``mass``, and the proven ends ``lo`` and ``hi`` of the attention
            to the segment over all alternatives. A segment that the row cannot see gets nothing.
        positions: Every token of prompt and answer with its segment; of the answer also its number there, and its
            ``probability`` and ``rank`` in the pass (1 is the most likely).

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.answer(lens, {"prompt": "Snow fell on the", "answer": " harbour."}, bounded=32)
        >>> found.tolerance, found.segments().filter(tolerance="0")["segment"].to_list()
        ('float32', ['template', 'prompt', 'answer so far'])
        >>> found.segments("layer").columns[:4]
        ['layer', 'segment', 'tolerance', 'mass']
        >>> found.compared.columns[4:]
        ['attention to template', 'attention to prompt', 'attention to answer so far']
    """

    analysis: ClassVar = "answer"
    title: ClassVar = "Attention of answers"
    schema: ClassVar = {
        "table": {**_ROW, "mass": pl.Float64},
        "intervals": {
            **_ROW,
            "tolerance": pl.String,
            "mass": pl.Float64,
            "lo": pl.Float64,
            "hi": pl.Float64,
        },
        "positions": {
            "text": pl.Int64,
            "position": pl.Int64,
            "token": pl.String,
            "segment": pl.String,
            "answer": pl.Int64,
            "probability": pl.Float64,
            "rank": pl.Int64,
        },
    }
    keys: ClassVar = {
        "table": list(_ROW),
        "intervals": [*_ROW, "tolerance"],
        "positions": ["text", "position"],
    }

    intervals: pl.DataFrame
    positions: pl.DataFrame

    def segments(self, *by: str) -> pl.DataFrame:
        """Return the mean attention to each segment with its ends, by further columns such as ``layer``.

        ``mass`` is the mean of all rows. Ends are known for the drawn rows only, masses for all: the mean end is b
        times the mean mass, plus the mean of end − b mass in the drawn rows, with b the slope of a least-squares line
        for each segment and tolerance (regression estimator, Cochran 1977, chapter 7). ``lo_error`` and ``hi_error``
        are standard errors, of ``rows`` drawn without repetition from ``population``. Alternatives of different rows
        are independent: the end of a mean is the mean of the ends.
        """
        columns, mass = [*by, "segment"], pl.col("mass")
        means = self.table.group_by(columns, maintain_order=True).agg(
            mass.mean(), population=pl.len()
        )
        slopes = {
            f"{end}_slope": (pl.cov("mass", end) / mass.var()).fill_nan(1.0).fill_null(1.0)
            for end in ("lo", "hi")
        }
        rests = self.intervals.with_columns(
            **{name: slope.over("segment", "tolerance") for name, slope in slopes.items()}
        )
        rests = rests.with_columns(
            *(pl.col(end) - pl.col(f"{end}_slope") * mass for end in ("lo", "hi"))
        )
        found = rests.group_by([*columns, "tolerance"], maintain_order=True).agg(
            pl.col("lo", "hi").std().name.suffix("_error"),
            pl.col("lo", "hi").mean(),
            pl.col("lo_slope", "hi_slope").first(),
            rows=pl.len(),
        )
        left = 1 - pl.col("rows") / pl.col("population")
        ends = means.join(found, on=columns, how="left", maintain_order="left").with_columns(
            *(pl.col(end) + pl.col(f"{end}_slope") * mass for end in ("lo", "hi")),
            pl.col("lo_error", "hi_error") * (left / pl.col("rows")).sqrt(),
        )
        return ends.select(
            *columns,
            "tolerance",
            "mass",
            pl.col("lo").clip(0.0, mass),
            pl.col("hi").clip(mass, 1.0),
            "lo_error",
            "hi_error",
            "rows",
            "population",
        )

    @property
    def compared(self) -> pl.DataFrame:
        """The attention of every token, layer and head, a column for each segment."""
        named = self.table.with_columns(pl.format("attention to {}", "segment").alias("segment"))
        return named.pivot("segment", index=["text", "token", "layer", "head"], values="mass")

    @property
    def tolerance(self) -> str | None:
        """The last tolerance, that of sentences and charts; None where no rows were bounded."""
        return next(reversed(self.intervals["tolerance"].to_list()), None)

    def summary(self) -> Finding:
        """Return what of the answers' attention is certain to lie on which segment, and what was drawn."""
        every = self.segments()
        means = every.filter(pl.col("tolerance").eq_missing(self.tolerance))
        first = means.sort(_CONTENT, "lo", "mass", maintain_order=True).row(-1, named=True)
        answered = self.positions.filter(pl.col("answer").is_not_null())
        texts = self.table.filter(segment=first["segment"])["text"].unique()
        of_these = counted(len(answered.filter(pl.col("text").is_in(texts.to_list()))), "token")
        who = f"the answer's {of_these}"
        several = self.table["text"].n_unique() > 1
        if several:
            who = f"the {of_these} of {counted(len(texts), 'answer')} (those to conversations with this segment)"
        where = f"of the attention of {who} is on {first['segment']!r}"
        text = [
            f"{percent(first['mass'])} {where}; no rows were bounded (--bounded 2; in Python: bounded=2)."
        ]
        if self.tolerance is not None:
            text = [
                f"At least {_estimate(first, 'lo')} {where} in every alternative with the same output of each head, "
                f"{exactness(self.tolerance)}. In the model it is {percent(first['mass'])}, in no alternative more "
                f"than {_estimate(first, 'hi')}.",
                *(
                    f"With the same output {exactness(one['tolerance'])} it is at least {_estimate(one, 'lo')}."
                    for one in every.filter(segment=first["segment"]).iter_rows(named=True)
                    if one["tolerance"] != self.tolerance
                ),
                f"Ends were computed for {first['rows']:,} of {first['population']:,} rows (tokens of the answer, "
                "layers and heads), drawn by seed where these are not all; attention for every row.",
            ]
        text += normed_heads(self.provenance["model"])
        certain = None
        if self.tolerance is not None:
            rows = self.table.select("text", "token", "layer", "head").n_unique()
            certain = (means["lo"] * means["population"]).sum() / rows
            text.append(
                f"Over all segments {percent(certain)} of the attention is certain: every alternative leaves it in the "
                "segment where it is."
            )
        others = means.filter(pl.col("segment") != first["segment"]).sort("mass", descending=True)
        shares = [
            f"{name!r} {percent(mass)}" for name, mass in others.select("segment", "mass").rows()
        ]
        if shares:
            having = ", each over the conversations that have it" * several
            text.append(f"The other segments{having}: {', '.join(shares)}.")
        unlikely = answered.filter(pl.col("rank") > 1)
        if len(unlikely):
            text.append(
                "Not the most likely one in the pass over prompt and answer: "
                f"{counted(len(unlikely), 'token')} of {len(answered):,}."
            )
        numbers = {name: first[name] for name in ("mass", "lo", "hi", "lo_error", "hi_error")}
        numbers["certain_mass"] = certain
        numbers |= {"tokens": len(answered), "rows": first["rows"], "of_rows": first["population"]}
        share = first["mass"] if first["lo"] is None else first["lo"]
        words = f"of the attention is on {first['segment']!r}"
        if self.tolerance is not None:
            estimated = " (estimated)" * (first["rows"] < first["population"])
            words += f" in every alternative{estimated}"
        return Finding("\n".join(text), numbers, [(percent(share), words)])

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the segments."""
        numbers = pl.col("mass", "lo", "hi").round(4)
        error = pl.max_horizontal("lo_error", "hi_error").round(4).alias("error")
        rows = pl.format("{} of {}", "rows", "population").alias("rows")
        shown = self.segments().select("segment", "tolerance", numbers, error, rows)
        return {"Attention of the answer by segment": shown}

    def token_lines(self, most: int = _SHOWN) -> list[TokenLine]:
        """Return each answer, its tokens marked by the segment of the prompt with most of their attention."""
        means, found = self.segments("text", "token"), []
        means = means.filter(pl.col("tolerance").eq_missing(self.tolerance))
        for (text,), rows in means.group_by("text", maintain_order=True):
            if len(found) == most:
                break
            answered = self.positions.filter(pl.col("answer").is_not_null(), text=text)
            shares = rows.group_by("segment").agg(pl.col("mass").mean()).sort("mass", "segment")
            shares = dict(shares.reverse().iter_rows())
            named = [name for name in shares if name not in _NOT_CONTENT]
            marks = {
                name: Mark(name, chr(ord("A") + at), at) for at, name in enumerate(named[:_COLOURS])
            }
            by_token = rows.partition_by("token", maintain_order=True)
            tokens = [
                _marked(token, part, marks)
                for token, part in zip(answered["token"], by_token, strict=True)
            ]
            legend = [(mark, percent(shares[name])) for name, mark in marks.items()]
            rest = 1 - sum(shares[name] for name in marks)
            legend.append((_OTHER, percent(max(rest, 0.0))))
            found.append(TokenLine(f"Answer of text {text}", tokens, legend))
        return found

    def charts(self) -> dict[str, AnyChart]:
        """Return ``tokens`` and ``layers``: the mean attention to each segment, its ends as a band."""
        largest = self.table.group_by("segment", maintain_order=True).agg(pl.col("mass").mean())
        largest = largest.sort("mass", descending=True, maintain_order=True)["segment"]
        found = {}
        for name, column, title in (
            ("tokens", "token", "Token of the answer"),
            ("layers", "layer", "Layer"),
        ):
            means = self.segments("text", column)
            means = means.filter(
                pl.col("tolerance").eq_missing(self.tolerance),
                pl.col("segment").is_in(largest.head(_COLOURS).to_list()),
            )
            chart = lines(
                means.select("text", column, "segment", "mass", "lo", "hi"),
                column,
                "mass",
                "segment",
                error=("lo", "hi") if self.tolerance else None,
                x_title=title,
                y_title="Share of attention, mean",
                color_title="Segment",
                title=f"Attention by segment and {column}",
            )
            found[name] = choose_present(chart, means, "text", "Text")
        return found

    def sections(self) -> list[Section]:
        """Return the answers, charts, tables, and maps of every head by token and segment."""
        [(title, frame)] = self.overview().items()
        bounded = [Section("bounded", "Bounded rows in numbers", frame=self.intervals)]
        return [
            Section(
                "lines",
                "The answer, marked by segment",
                _TEXT,
                lines=self.token_lines(_LINES),
            ),
            Section("segments", title, _SEGMENTS, frame=frame),
            Section("charts", "By token and by layer", _BANDS, ["tokens", "layers"]),
            Section("maps", "Every head by token and segment", _MAPS, maps=self._maps()),
            *(bounded if self.tolerance is not None else []),
        ]

    def _maps(self) -> list[TokenMap]:
        """Return the attention of each head by token of the answer and segment, and by key where rows were saved."""
        maps = []
        for (text, layer, head), rows in self.table.group_by(
            ["text", "layer", "head"], maintain_order=True
        ):
            wide = rows.pivot("segment", index="token", values="mass", maintain_order=True)
            names = wide.columns[1:]
            masses = torch.from_numpy(wide.select(names).to_numpy(writable=True)).float()
            tokens = self.positions.filter(text=text)
            queries = tokens.filter(pl.col("answer").is_not_null())["token"].to_list()
            # The map on which most attention leaves the template opens first.
            interest = float(masses[:, [name not in _NOT_CONTENT for name in names]].sum())
            choices = {"text": text, "layer": layer, "head": head}
            shown = {"segments": (masses, names)}
            key = str(MatrixKey(**choices, kind="decoder", name="raw"))  # pyright: ignore[reportArgumentType]
            if key in self.matrices:
                shown["keys"] = self.matrices[key], tokens["token"].to_list()
            for name, (matrix, keys) in shown.items():
                layers = {"attention": matrix}
                maps.append(
                    TokenMap({**choices, "columns": name}, layers, queries, keys, interest=interest)  # pyright: ignore[reportArgumentType]
                )
        return maps


def _estimate(row: dict[str, Any], end: str) -> str:
    """Return an end in per cent, with its standard error where rows were drawn."""
    error = row[f"{end}_error"]
    if row["rows"] == row["population"]:
        return percent(row[end])
    spread = "from one row" if error is None else f"standard error {percent(error)}"
    return f"{percent(row[end])} (estimated, {spread})"


def _marked(token: str, row: pl.DataFrame, marks: dict[str, Mark]) -> MarkedToken:
    """Return a token of an answer, marked by the segment with most of its attention, with all segments in its note."""
    notes = []
    for one in row.sort("mass", descending=True, maintain_order=True).iter_rows(named=True):
        ends = "" if one["lo"] is None else f" ({percent(one['lo'])} to {percent(one['hi'])})"
        notes.append(f"{one['segment']}: {percent(one['mass'])}{ends}")
    largest = row.sort(_CONTENT, "mass", maintain_order=True).row(-1, named=True)
    mark = marks.get(largest["segment"], _OTHER)
    return MarkedToken(token, mark, f"{100 * largest['mass']:.0f}", "; ".join(notes))


_TEXT = (
    "Every token of the answer, marked by the segment of the prompt that gets most of its attention: the mean of "
    "layers and heads, in percent. The template, a sink and the answer itself are left out of this choice. Point at a "
    "token for all segments, with their ends.",
)
_SEGMENTS = (
    "mass is the mean over all tokens of the answer, layers and heads. lo and hi: every choice of weights that gives "
    "each head the same output keeps the mean between them. Where rows were drawn, these are estimates; error is the "
    "larger of their standard errors.",
)
_BANDS = (
    "Lines are means of all rows. Bands reach from the least to the greatest attention in any alternative, estimated "
    "from the rows drawn for each token or layer.",
)
_MAPS = (
    "Rows are the tokens of the answer, columns the segments; with --matrices also all keys. Choose a layer and a "
    "head, and a token to see its segments or keys.",
)
