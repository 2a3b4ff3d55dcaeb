"""The result of measuring answers: attention by segment with proven ends, the answer marked by segments."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose_present, lines
from identilens.charts.labels import lower, upper
from identilens.charts.page import Section
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine
from identilens.charts.viewer import TokenMap
from identilens.models.chats import REST, SINK, SO_FAR, TEMPLATE
from identilens.runs.matrices import MatrixKey
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, counted, ends, integers, percent
from identilens.studies.outcomes import exactness, normed_heads

_ROW = {**integers("text", "token", "layer", "head"), "segment": pl.String}
_ENDS = {"tolerance": pl.String, "mass": pl.Float64, "lo": pl.Float64, "hi": pl.Float64}
_COLOURS, _LINES, _SHOWN = 8, 24, 3
"""Segments with a colour and a letter, lines of tokens in a page, and in a terminal."""

_NOT_CONTENT = [TEMPLATE, SO_FAR, SINK]
"""Segments that nobody wrote for the model to read."""

_CONTENT = ~pl.col("segment").is_in(_NOT_CONTENT)

_FEW, _ALIKE = 4, 1e-9
"""Fewest rows whose spread says something, and spreads that say that the drawn rows are alike."""

MORE, LESS, OPEN = "more in every alternative", "less in every alternative", "open"
"""Whether one segment gets more attention than another."""

_MARKED = "each token with the letter of the segment (not the template or answer) with most of its attention, in %"
_OTHER = Mark("other segments, template, answer so far", "·", None)


@dataclass(frozen=True, kw_only=True)
class Answers(Result):
    """Where the attention of answers lies, by segment of the conversation, and what of it is certain.

    Attributes:
        table: Attention ``mass`` of every token of the answer, layer, head and segment.
        intervals: For bounded rows and every tolerance: ``mass``, and the proven ends ``lo`` and ``hi`` of the
            attention to the segment over all alternatives. A segment that the row cannot see gets nothing.
        differences: Of the same rows, the ``mass`` of a named segment less that of an ``other`` one, and its proven
            ends. Where more than three segments are named, there are none.
        positions: Every token of prompt and answer with its segment; of the answer also its number there, and its
            ``probability`` and ``rank`` in the pass (1 is the most likely).
        needed: For every segment that can be taken out of the prompt and token of the answer: the probability of the
            token ``without`` the segment, measured in the model.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.answer(lens, {"prompt": "Snow fell on the", "answer": " harbour."}, bounded=32)
        >>> found.tolerance, found.segments().filter(tolerance="0")["segment"].to_list()
        ('bfloat16', ['template', 'prompt', 'answer so far'])
        >>> found.segments("layer").columns[:4]
        ['layer', 'segment', 'tolerance', 'mass']
        >>> found.compared.columns[4:]
        ['attention to template', 'attention to prompt', 'attention to answer so far']
    """

    analysis: ClassVar = "answer"
    title: ClassVar = "Answers: where their attention lies, and what they need"
    schema: ClassVar = {
        "table": {**_ROW, "mass": pl.Float64},
        "intervals": {**_ROW, **_ENDS},
        "differences": {**_ROW, "other": pl.String, **_ENDS},
        "positions": {
            **integers("text", "position"),
            "token": pl.String,
            "segment": pl.String,
            "answer": pl.Int64,
            "probability": pl.Float64,
            "rank": pl.Int64,
        },
        "needed": {
            "text": pl.Int64,
            "segment": pl.String,
            "token": pl.Int64,
            "without": pl.Float64,
        },
    }
    keys: ClassVar = {
        "table": list(_ROW),
        "intervals": [*_ROW, "tolerance"],
        "differences": [*_ROW, "other", "tolerance"],
        "positions": ["text", "position"],
        "needed": ["text", "segment", "token"],
    }

    intervals: pl.DataFrame
    differences: pl.DataFrame
    positions: pl.DataFrame
    needed: pl.DataFrame

    def segments(self, *by: str) -> pl.DataFrame:
        """Return the mean attention to each segment with its ends, by further columns such as ``layer``.

        ``mass`` is the mean of all rows. Ends are known for the drawn rows only, masses for all: the mean end is the
        mean mass plus the mean of end − mass in the drawn rows, within the values that it can have (Cochran 1977,
        section 7.2, b = 1). Every row is drawn with the same probability: over all rows this is unbiased. ``lo_error``
        and ``hi_error`` are standard errors, of ``rows`` drawn from ``population`` as if without regard to layers; null
        from fewer than four rows, or if all drawn rows are alike. With a tolerance each row is taken by itself.
        """
        return _estimated(self.table, self.intervals, [*by, "segment"], 0.0)

    def certain(self) -> pl.DataFrame:
        """Return `segments` of all segments together: ``lo`` is what no alternative moves to another one."""
        row = pl.exclude("mass", "lo", "hi")
        table, intervals = (
            one.with_columns(segment=pl.lit("all"))
            .group_by(row, maintain_order=True)
            .agg(pl.all().sum())
            for one in (self.table, self.intervals)
        )
        return _estimated(table, intervals, ["segment"], 0.0)

    def order(self) -> pl.DataFrame:
        """Return how much more attention each named segment gets than each ``other``, with ends and a ``verdict``.

        Ends that are estimated are taken two standard errors farther; without a known error the order is open.
        """
        pairs = self.differences.select("segment", "other").unique(maintain_order=True)
        other = self.table.rename({"segment": "other", "mass": "less"})
        table = pairs.join(self.table, on="segment", maintain_order="left")
        table = table.join(other, on=["text", "token", "layer", "head", "other"])
        table = table.with_columns(mass=pl.col("mass") - pl.col("less"))
        lo, hi = pl.col("lo") - 2 * pl.col("lo_error"), pl.col("hi") + 2 * pl.col("hi_error")
        verdict = pl.when(lo > 0).then(pl.lit(MORE)).when(hi < 0).then(pl.lit(LESS))
        found = _estimated(table, self.differences, ["segment", "other"], -1.0)
        return found.with_columns(verdict=verdict.otherwise(pl.lit(OPEN)))

    def needs(self) -> pl.DataFrame:
        """Return how likely each answer is, and without each segment of the prompt, the most needed segment first.

        ``probability`` and ``without`` are products over the answer's tokens, ``change`` the change of the logarithm in
        nats; ``at`` is the token that becomes less likely by the largest factor, from ``before`` to ``after``.
        """
        before, after = pl.col("before"), pl.col("after")
        ratio = after.log() - before.log()
        answered = self.positions.drop_nulls("answer").select(
            "text", token="answer", at="token", before="probability"
        )
        return (
            self.needed.rename({"without": "after"})
            .join(answered, on=["text", "token"], maintain_order="left")
            .group_by("text", "segment", maintain_order=True)
            .agg(
                probability=before.product(),
                without=after.product(),
                change=ratio.sum(),
                **{name: pl.col(name).sort_by(ratio).first() for name in ("at", "before", "after")},
            )
            .sort("text", "change", maintain_order=True)
        )

    def _last(self, *by: str) -> pl.DataFrame:
        """Return `segments` for the last tolerance, with those of which no row was bounded."""
        last = pl.col("tolerance").eq_missing(self.tolerance) | pl.col("tolerance").is_null()
        return self.segments(*by).filter(last)

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
        """Return what of the attention is certain to lie on which segment, their order, and what the answer needs."""
        means = self._last()
        # What was named comes before the rest of a prompt.
        rank = _CONTENT, pl.col("segment") != REST, "mass"
        first = means.sort(rank, maintain_order=True).row(-1, named=True)
        segment = first["segment"]
        tokens = counted(len(self.positions.drop_nulls("answer")), "token")
        who = f"of the attention of the answer's {tokens} is on {segment!r}"
        text, words, share = (
            f"{percent(first['mass'])} {who}; no rows were bounded (--bounded 0).",
            f"of the attention is on {segment!r}",
            percent(first["mass"]),
        )
        numbers = {name: first[name] for name in ("mass", "lo", "hi", "lo_error", "hi_error")}
        last = pl.col("tolerance").eq_missing(pl.lit(self.tolerance))
        certain = self.certain().filter(last).to_dicts()
        for name, end in (("certain_mass", "lo"), ("certain_mass_error", "lo_error")):
            numbers[name] = certain[0][end] if certain else None
        numbers |= {"tokens": len(self.positions.drop_nulls("answer"))}
        numbers |= {"rows": first["rows"], "of_rows": first["population"]}
        if self.tolerance is not None:
            text = (
                f"At least {_estimate(first, 'lo')} {who} in every alternative with the same output of each head, "
                f"{exactness(self.tolerance)}, and at most {_estimate(first, 'hi')}; in the model it is "
                f"{percent(first['mass'])}."
            )
            words, share = words + " in every alternative", _end(first, "lo")
        said, headline = self._needed()
        lines = [text, *self._ordered(segment), *said]
        return Finding("\n".join(lines), numbers, [(share, words), *headline])

    def _ordered(self, segment: str) -> Iterator[str]:
        """Yield which other segments get less, and which more, in every alternative."""
        last = pl.col("tolerance").eq_missing(pl.lit(self.tolerance))
        order = self.order().filter(last, segment=segment)
        groups = order.group_by("verdict", maintain_order=True).agg("other").rows()
        named = [f"{verdict}: {', '.join(map(repr, others))}" for verdict, others in groups]
        if named:
            yield f"Compared with other segments {segment!r} has {'; '.join(named)}."

    def _needed(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Return what the first answer loses without each segment, and the headline of that."""
        needs = self.needs()
        if not len(needs):
            return [], []
        first, *others = needs.filter(text=needs["text"][0]).to_dicts()
        change = f"{first['probability']:.2g} → {first['without']:.2g}"
        more = "".join(f"; without {one['segment']!r} {one['without']:.2g}" for one in others)
        words = f"probability of the answer to text {first['text']} without {first['segment']!r}"
        said = f"The {words}, measured in the model: {change}{more}."
        return [said], [(change, words)]

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the segments, their order, and what the answer needs."""
        rounded = pl.col("mass", "lo_error", "hi_error").round(4)
        segments = self.segments().with_columns(rounded, *ends(4))
        tables = {"Attention of the answer by segment": segments}
        tables["Which segment has more"] = self.order().with_columns(rounded, *ends(4))
        tables["What the answer needs"] = self.needs()
        return {title: frame for title, frame in tables.items() if len(frame)}

    def token_lines(self, most: int = _SHOWN) -> list[TokenLine]:
        """Return each answer, its tokens marked by the segment of the prompt with most of their attention."""
        marks = {
            name: Mark(name, chr(ord("A") + at), at)
            for at, name in enumerate(self._coloured)
            if name not in _NOT_CONTENT
        }
        lines = []
        for (text,), rows in self._last("text", "token").group_by("text", maintain_order=True):
            answered = self.positions.drop_nulls("answer").filter(text=text)
            parts = rows.partition_by("token", maintain_order=True)
            tokens = [
                _marked(token, part, marks)
                for token, part in zip(answered["token"], parts, strict=True)
            ]
            shares = dict(rows.group_by("segment").agg(pl.col("mass").mean()).rows())
            own = [(mark, shares[name]) for name, mark in marks.items() if name in shares]
            own.append((_OTHER, max(0.0, 1 - sum(share for _, share in own))))
            legend = [(mark, percent(share)) for mark, share in own]
            lines.append(TokenLine(f"The answer to text {text}: {_MARKED}", tokens, legend))
        return lines[:most]

    @property
    def _coloured(self) -> list[str]:
        """The segments with a colour, in the order of colours: by attention, what nobody wrote for the model last."""
        means = self.table.group_by("segment", maintain_order=True).agg(pl.col("mass").mean())
        order = _CONTENT, "mass"
        means = means.sort(order, descending=True, maintain_order=True)
        return means["segment"].head(_COLOURS).to_list()

    def charts(self) -> dict[str, AnyChart]:
        """Return ``tokens`` and ``layers``: the mean attention to each segment, its ends as a band."""
        order, found = pl.Enum(self._coloured), {}
        for name, column in (("tokens", "token"), ("layers", "layer")):
            means = self._last("text", column)
            means = means.filter(pl.col("segment").is_in(order.categories))
            means = means.sort(pl.col("segment").cast(order), maintain_order=True)
            known = pl.col("lo_error").is_not_null() & pl.col("hi_error").is_not_null()
            drawn = means.with_columns(pl.when(known).then(pl.col("lo", "hi")))
            chart = lines(
                drawn.select("text", column, "segment", "mass", "lo", "hi"),
                column,
                "mass",
                "segment",
                error=("lo", "hi") if drawn["lo"].count() else None,
                x_title=column.capitalize(),
                y_title="Share of attention, mean",
                color_title="Segment",
                title=f"Attention by segment and {column}",
            )
            found[name] = choose_present(chart, means, "text", "Text")
        return found

    def sections(self) -> list[Section]:
        """Return the answers, the tables and charts, and maps of the heads whose rows were saved."""
        frames = [
            Section(f"table{number}", title, _SEGMENTS if number == 0 else (), frame=frame)
            for number, (title, frame) in enumerate(self.overview().items())
        ]
        text = *_TEXT, *normed_heads(self.provenance["model"])
        return [
            Section("lines", "The answer, marked by segment", text, lines=self.token_lines(_LINES)),
            *frames,
            Section("charts", "By token and by layer", _BANDS, ["tokens", "layers"]),
            *([Section("maps", "Every head by key", maps=self._maps())] if self.matrices else []),
            Section("bounded", "Bounded rows in numbers", frame=self.intervals),
        ]

    def _maps(self) -> list[TokenMap]:
        """Return the attention of each head by token of the answer and key."""
        maps = []
        for (text, layer, head), _ in self.table.group_by(
            "text", "layer", "head", maintain_order=True
        ):
            choices: Any = {"text": text, "layer": layer, "head": head}
            matrix = self.matrices[str(MatrixKey(**choices, kind="decoder", name="raw"))]
            tokens = self.positions.filter(text=text)
            queries = tokens.drop_nulls("answer")["token"].to_list()
            keys = tokens["token"].to_list()
            maps.append(TokenMap(choices, {"attention": matrix}, queries, keys))
        return maps


def _estimated(
    table: pl.DataFrame, bounded: pl.DataFrame, columns: Sequence[str], least: float
) -> pl.DataFrame:
    """Return mean values with their ends by some columns: values of all rows, ends of bounded rows; see `segments`."""
    ends, mass, rows = pl.col("lo", "hi"), pl.col("mass"), pl.col("rows")
    means = table.group_by(columns, maintain_order=True).agg(mass.mean(), population=pl.len())
    found = (
        bounded.with_columns(ends - mass)
        .group_by([*columns, "tolerance"], maintain_order=True)
        .agg(ends.mean(), ends.std().name.suffix("_error"), rows=pl.len())
    )
    left = 1 - rows / pl.col("population")
    return means.join(found, on=columns, how="left", maintain_order="left").select(
        *columns,
        "tolerance",
        "mass",
        (pl.col("lo") + mass).clip(least, mass),
        (pl.col("hi") + mass).clip(mass, 1.0),
        *(
            pl.when(left == 0)
            .then(0.0)
            .when(rows >= _FEW, pl.col(error) > _ALIKE)
            .then(pl.col(error) * (left / rows).sqrt())
            .alias(error)
            for error in ("lo_error", "hi_error")
        ),
        "rows",
        "population",
    )


def _estimate(row: Row, end: str) -> str:
    """Return an end in per cent, with its standard error where rows were drawn."""
    if row["rows"] == row["population"]:
        return _end(row, end)
    error, spread = row[f"{end}_error"], f"from {counted(row['rows'], 'row')}"
    if error is not None:
        spread = f"standard error {100 * error:.1f} points"
    return f"{_end(row, end)} (estimated, {spread})"


def _end(row: Row, end: str) -> str:
    """Return an end in per cent, rounded outward."""
    share = 100 * row[end]
    return f"{lower(share, '.1f') if end == 'lo' else upper(share, '.1f')} %"


def _marked(token: str, row: pl.DataFrame, marks: Mapping[str, Mark]) -> MarkedToken:
    """Return a token of an answer, marked by the segment with most of its attention, with all segments in its note."""
    every = row.sort("mass", descending=True, maintain_order=True)
    notes = [f"{name}: {percent(mass)}" for name, mass in every.select("segment", "mass").rows()]
    largest = row.sort(_CONTENT, "mass", maintain_order=True).row(-1, named=True)
    mark = marks.get(largest["segment"], _OTHER)
    return MarkedToken(token, mark, f"{100 * largest['mass']:.0f}", "; ".join(notes))


_TEXT = (
    "Every token of the answer, marked by the segment of the prompt that gets most of its attention: the mean of "
    "layers and heads, in percent. Point at a token for all segments, with their ends where these are known.",
)
_SEGMENTS = (
    "The mass is the mean over all tokens of the answer, layers and heads. Every choice of weights that gives each "
    "head exactly the same output keeps the mean between lo and hi; with a tolerance above 0 each row changes by "
    "itself. Where rows were drawn, these are estimates, with their standard errors (lo_error, hi_error).",
)
_BANDS = (
    "Lines are means of all rows. Bands reach from the least to the greatest attention in any alternative, estimated "
    "where rows were drawn, and left out where there are fewer than four of a token or layer, or all are alike.",
)
