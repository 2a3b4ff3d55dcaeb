"""The result of measuring answers: attention by segment with proven ends, the answer marked by segments."""

from dataclasses import dataclass, replace
from typing import ClassVar

import polars as pl
import torch

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose_present, lines
from identilens.charts.labels import lower, shortened, upper
from identilens.charts.page import Section
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine
from identilens.charts.viewer import TokenMap
from identilens.models.chats import REST, SINK, SO_FAR, TEMPLATE
from identilens.runs.matrices import MatrixKey
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, counted, ends, integers, percent
from identilens.studies.outcomes import FEW_KEYS, exactness, normed_heads

_ROW = {**integers("text", "token", "layer", "head"), "segment": pl.String}
_ENDS = {"tolerance": pl.String, "mass": pl.Float64, "lo": pl.Float64, "hi": pl.Float64}
_COLOURS, _LINES, _SHOWN = 8, 24, 3
"""Segments with a colour of their own, or a letter in one answer, lines of tokens in a page, and in a terminal."""

_NOT_CONTENT = [TEMPLATE, SO_FAR, SINK]
"""Segments that nobody wrote for the model to read."""

_CONTENT = ~pl.col("segment").is_in(_NOT_CONTENT)

_READ = 600
"""Characters of an answer in the finding."""

_FEW, _ALIKE = 4, 1e-9
"""Fewest rows whose spread says something, and spreads that say that the drawn rows are alike."""

_ORDERS = (
    " With the same output {}, every alternative gives {} more than {}.",
    " With the same output {}, every alternative gives {} less than {}.",
    " With the same output {}, ranges overlap, and leave open whether {} has more than {}.",
)
_NOT_NEEDED = "This says where attention lies, not what the answer needs. "
_NO_SEGMENTS = "To have parts of the prompt taken out, name them (--segment). "
_TAKEN_OUT = (
    "One segment at a time was taken out of the prompt (its last token stays), and the model run again: this "
    "rests on no attention weight. "
)
_ALSO = "Tokens that it needs: identilens faithfulness --decision ANSWER; heads: identilens influence, likewise."

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
        columns, ends = [*by, "segment"], pl.col("lo", "hi")
        mass, rows = pl.col("mass"), pl.col("rows")
        means = self.table.group_by(columns, maintain_order=True).agg(
            mass.mean(), population=pl.len()
        )
        found = (
            self.intervals.with_columns(ends - mass)
            .group_by([*columns, "tolerance"], maintain_order=True)
            .agg(ends.mean(), ends.std().name.suffix("_error"), rows=pl.len())
        )
        left = 1 - rows / pl.col("population")
        return means.join(found, on=columns, how="left", maintain_order="left").select(
            *columns,
            "tolerance",
            "mass",
            (pl.col("lo") + mass).clip(0.0, mass),
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
        """Return what of the answers' attention is certain to lie on which segment, and what was drawn."""
        every, means = self.segments(), self._last()
        # What was named comes before the rest of a prompt.
        order = _CONTENT, pl.col("segment") != REST, "mass"
        first = means.sort(order, maintain_order=True).row(-1, named=True)
        apart = self._apart(first["segment"])
        answered = self.positions.filter(pl.col("answer").is_not_null())
        texts = self.table.filter(segment=first["segment"])["text"].unique()
        of_these = counted(len(answered.filter(pl.col("text").is_in(texts.to_list()))), "token")
        who = f"the answer's {of_these}"
        several = self.table["text"].n_unique() > 1
        drawn = (first["rows"] or first["population"]) < first["population"]
        if several:
            who = f"the {of_these} of {counted(len(texts), 'answer')} (those to conversations with this segment)"
        named = means.filter(_CONTENT, pl.col("segment") != REST)
        on = f"is on {first['segment']!r}{' (of the named segments the one with most)' * (len(named) > 1)}"
        where, certain = f"of the attention of {who} {on}", {}
        if self.tolerance is None:
            text = [f"{percent(first['mass'])} {where}; no rows were bounded (--bounded 0)."]
        else:
            certain = {one["tolerance"]: one for one in self._certain().iter_rows(named=True)}
            few = f"With exactly the same outputs nothing moves between segments{' in these rows' * drawn}. {FEW_KEYS}"
            text = [
                f"At least {_estimate(first, 'lo')} {where} in every alternative with the same output of each head, "
                f"{_nearly(self.tolerance)}. In the model it is {percent(first['mass'])}, in no alternative more "
                f"than {_estimate(first, 'hi')}.",
                *(
                    f"With the same output {_nearly(one['tolerance'])} it is at least {_estimate(one, 'lo')}."
                    f"{_order(one, every.filter(tolerance=one['tolerance']), apart)}"
                    for one in every.filter(segment=first["segment"]).iter_rows(named=True)
                    if one["tolerance"] != self.tolerance
                ),
                "Shares are means over rows (tokens of the answer, layers and heads). Least and greatest values were "
                f"computed for {first['rows']:,} of {first['population']:,}{', drawn evenly over layers' * drawn}.",
                f"Over all segments {_estimate(certain[self.tolerance], 'lo')} of the attention is certain: every "
                "alternative leaves it in the segment where it is.",
                *([few] if "0" in certain and certain["0"]["lo"] > 0.9995 else []),
            ]
        text += normed_heads(self.provenance["model"])
        having = ", each over the conversations that have it" * several
        having += ", with ends that are estimated" * drawn
        text.append(f"The other segments{having}: {_others(first, means, apart)}")
        unlikely = answered.filter(pl.col("rank") > 1)
        if len(unlikely):
            text.append(
                "Not the most likely one in the pass over prompt and answer: "
                f"{counted(len(unlikely), 'token')} of {len(answered):,}."
            )
        said, headline = self._needed()
        number = answered["text"][0]
        read = " ".join("".join(answered.filter(text=number)["token"]).split())
        text += [said, f"The answer to text {number} reads: “{shortened(read, _READ)}”"]
        numbers = {name: first[name] for name in ("mass", "lo", "hi", "lo_error", "hi_error")}
        of_all = certain.get(self.tolerance, {})
        numbers |= {"certain_mass": of_all.get("lo"), "certain_mass_error": of_all.get("lo_error")}
        numbers |= {"tokens": len(answered), "rows": first["rows"], "of_rows": first["population"]}
        words = f"of the attention {on}{' in every alternative' * bool(certain)}"
        words += " (estimated)" * drawn
        share = _end(first, "lo") if certain else percent(first["mass"])
        return Finding("\n".join(text), numbers, [(share, words), *headline])

    def _needed(self) -> tuple[str, list[tuple[str, str]]]:
        """Return what the first answer loses without each segment, and the headline of that."""
        needs = self.needs()
        if not len(needs):
            return _NOT_NEEDED + _NO_SEGMENTS + _ALSO, []
        first, *others = needs.filter(text=needs["text"][0]).to_dicts()
        segment, left = repr(first["segment"]), f"{first['without']:.2g}"
        whole, whose = f"{first['probability']:.2g}", f"the answer to text {first['text']}"
        most = f" (it loses most at {first['at']!r}: {first['before']:.2g} → {first['after']:.2g})"
        said = f"Without {segment} {whose} has probability {left} in place of {whole}"
        said += most * (first["after"] < first["before"])
        said += "".join(f"; without {one['segment']!r} {one['without']:.2g}" for one in others)
        said += ". Without some it is likelier" * ([first, *others][-1]["change"] > 0)
        words = f"probability of {whose} without {segment}"
        return (
            f"{_NOT_NEEDED}{said}. {_TAKEN_OUT}{_NO_SEGMENTS * (not others)}{_ALSO}",
            [(f"{whole} → {left}", words + ", where it is least" * (len(others) > 0))],
        )

    def _certain(self) -> pl.DataFrame:
        """Return `segments` of all segments together: ``lo`` is what no alternative moves to another one."""
        row = pl.exclude("mass", "lo", "hi")
        table, intervals = (
            one.with_columns(segment=pl.lit("all"))
            .group_by(row, maintain_order=True)
            .agg(pl.all().sum())
            for one in (self.table, self.intervals)
        )
        return replace(self, table=table, intervals=intervals).segments()

    def _apart(self, segment: str) -> pl.DataFrame:
        """Return `segments` of half of 1 and what a segment gets beyond each other one, which is a share again."""
        own = self.table.filter(segment=segment).drop("segment")
        table = self.table.join(own, on=own.columns[:-1])
        table = table.with_columns(mass=(1 + pl.col("mass_right") - pl.col("mass")) / 2)
        apart = self.differences.filter(segment=segment).with_columns(segment="other")
        apart = apart.with_columns((pl.col("mass", "lo", "hi") + 1) / 2)
        return replace(self, table=table, intervals=apart).segments()

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the segments."""
        low, high = ends(4)
        mass, *errors = (pl.col(name).round(4) for name in ("mass", "lo_error", "hi_error"))
        rows = pl.format("{} of {}", "rows", "population").alias("rows")
        shown = self.segments().select(
            "segment", "tolerance", mass, low, errors[0], high, errors[1], rows
        )
        found = {"Attention of the answer by segment": shown}
        return found | ({"What the answer needs": self.needs()} if len(self.needed) else {})

    def token_lines(self, most: int = _SHOWN) -> list[TokenLine]:
        """Return each answer, its tokens marked by the segment of the prompt with most of their attention."""
        means, found = self._last("text", "token"), []
        coloured = {name: at for at, name in enumerate(self._coloured)}
        for (text,), rows in means.group_by("text", maintain_order=True):
            if len(found) == most:
                break
            answered = self.positions.filter(pl.col("answer").is_not_null(), text=text)
            shares = rows.group_by("segment").agg(pl.col("mass").mean()).sort("mass", "segment")
            shares = dict(shares.reverse().iter_rows())
            named = [name for name in shares if name not in _NOT_CONTENT]
            marks = {
                name: Mark(name, chr(ord("A") + at), coloured.get(name))
                for at, name in enumerate(named[:_COLOURS])
            }
            by_token = rows.partition_by("token", maintain_order=True)
            tokens = [
                _marked(token, part, marks, self.needed.filter(text=text, token=number))
                for number, (token, part) in enumerate(
                    zip(answered.iter_rows(named=True), by_token, strict=True)
                )
            ]
            legend = [(mark, percent(shares[name])) for name, mark in marks.items()]
            rest = 1 - sum(shares[name] for name in marks)
            legend.append((_OTHER, percent(max(rest, 0.0))))
            found.append(TokenLine(f"The answer to text {text}: {_MARKED}", tokens, legend))
        return found

    @property
    def _coloured(self) -> list[str]:
        """The segments with a colour, in the order of colours: by attention, what nobody wrote for the model last."""
        means = self.table.group_by("segment", maintain_order=True).agg(pl.col("mass").mean())
        means = means.sort("mass", descending=True, maintain_order=True)
        last = means.filter(~_CONTENT)["segment"].to_list()
        first = means.filter(_CONTENT)["segment"].head(_COLOURS - len(last))
        return [*first, *last]

    def charts(self) -> dict[str, AnyChart]:
        """Return ``tokens`` and ``layers``: the mean attention to each segment, its ends as a band."""
        order, found = pl.Enum(self._coloured), {}
        for name, column, title in (
            ("tokens", "token", "Token of the answer"),
            ("layers", "layer", "Layer"),
        ):
            means = self._last("text", column)
            means = means.filter(pl.col("segment").is_in(order.categories))
            means = means.sort(pl.col("segment").cast(order), maintain_order=True)
            known = pl.all_horizontal(pl.col("lo_error", "hi_error").is_not_null())
            ends = (pl.when(known).then(end) for end in ("lo", "hi"))
            drawn = means.select("text", column, "segment", "mass", *ends)
            chart = lines(
                drawn,
                column,
                "mass",
                "segment",
                error=("lo", "hi") if drawn["lo"].count() else None,
                x_title=title,
                y_title="Share of attention, mean",
                color_title="Segment",
                title=f"Attention by segment and {column}",
            )
            found[name] = choose_present(chart, means, "text", "Text")
        return found

    def sections(self) -> list[Section]:
        """Return the answers, charts, tables, and maps of every head by token and segment."""
        (title, frame), *needs = self.overview().items()
        bounded = [Section("bounded", "Bounded rows in numbers", frame=self.intervals)]
        return [
            Section(
                "lines", "The answer, marked by segment", _TEXT, lines=self.token_lines(_LINES)
            ),
            Section("segments", title, _SEGMENTS, frame=frame),
            *(Section("needs", name, _NEEDS, frame=one) for name, one in needs),
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


def _nearly(tolerance: str) -> str:
    """Return how nearly the outputs stay, in words. With a tolerance, alternatives of rows do not add up."""
    return exactness(tolerance) + ", each row by itself" * (tolerance != "0")


def _estimate(row: Row, end: str) -> str:
    """Return an end in per cent, with its standard error where rows were drawn."""
    error = row[f"{end}_error"]
    if row["rows"] == row["population"]:
        return _end(row, end)
    spread = f"from {counted(row['rows'], 'row')}"
    if error is not None:
        points = f"{100 * error:.1f}" if error >= 0.001 else "below 0.1"
        spread = f"standard error {points} points"
    return f"{_end(row, end)} (estimated, {spread})"


def _end(row: Row, end: str) -> str:
    """Return an end in per cent, rounded outward."""
    share = 100 * row[end]
    return f"{lower(share, '.1f') if end == 'lo' else upper(share, '.1f')} %"


def _others(first: Row, means: pl.DataFrame, apart: pl.DataFrame) -> str:
    """Return the attention to all other segments, and which of them have less or more than the first for certain."""
    others = means.filter(pl.col("segment") != first["segment"]).sort("mass", descending=True)
    shares = [f"{one['segment']!r} {_share(one)}" for one in others.iter_rows(named=True)]
    return ", ".join(shares) + "." + ("" if first["lo"] is None else _order(first, means, apart))


def _order(first: Row, means: pl.DataFrame, apart: pl.DataFrame) -> str:
    """Return which other segments have less, which have more, and which may have either, at one tolerance."""
    # Ends that are estimated are taken two standard errors farther; ends without a known error are not compared.
    lo, hi = pl.col("lo") - 2 * pl.col("lo_error"), pl.col("hi") + 2 * pl.col("hi_error")
    segment, exact = pl.col("segment"), exactness(first["tolerance"])
    own = segment == first["segment"]
    least, most = lo.filter(own).first(), hi.filter(own).first()
    # Where ranges overlap, the range of the difference can still lie on one side.
    apart = apart.filter(tolerance=first["tolerance"])
    more, less = (segment.is_in(apart.filter(side)["segment"]) for side in (lo > 0.5, hi < 0.5))
    place = pl.when((hi < least) | more).then(0).when((lo > most) | less).then(1).otherwise(2)
    named = means.select("segment", "mass", place=place).filter(~own, pl.col("mass") > 0)
    return "".join(
        words.format(exact, repr(first["segment"]), ", ".join(map(repr, found)))
        for at, words in enumerate(_ORDERS)
        if (found := named.filter(place=at)["segment"].to_list())
    )


def _share(row: Row) -> str:
    """Return the attention to a segment in per cent, with its ends where these and their error are known."""
    known = row["lo_error"] is not None and row["hi_error"] is not None
    return percent(row["mass"]) + (f" ({_end(row, 'lo')} to {_end(row, 'hi')})" if known else "")


def _marked(
    token: Row, row: pl.DataFrame, marks: dict[str, Mark], needed: pl.DataFrame
) -> MarkedToken:
    """Return a token of an answer, marked by the segment with most of its attention, with all segments in its note."""
    every = row.sort("mass", descending=True, maintain_order=True).iter_rows(named=True)
    notes = [f"{one['segment']}: {_share(one)}" for one in every]
    largest = row.sort(_CONTENT, "mass", maintain_order=True).row(-1, named=True)
    mark = marks.get(largest["segment"], _OTHER)
    for one in needed.sort("without").head(1).iter_rows(named=True):
        notes.append(
            f"probability {token['probability']:.2g}, without {one['segment']!r} {one['without']:.2g}"
        )
    return MarkedToken(token["token"], mark, f"{100 * largest['mass']:.0f}", "; ".join(notes))


_TEXT = (
    "Every token of the answer, marked by the segment of the prompt that gets most of its attention: the mean of "
    "layers and heads, in percent. Point at a token for all segments, with their ends where these are known.",
)
_SEGMENTS = (
    "The mass is the mean over all tokens of the answer, layers and heads. Every choice of weights that gives each "
    "head exactly the same output keeps the mean between lo and hi; with a tolerance above 0 each row changes by "
    "itself. Where rows were drawn, these are estimates, with their standard errors (lo_error, hi_error).",
)
_NEEDS = (
    "One segment at a time is taken out of the prompt; the model reads the rest and the same answer. Here are the "
    "product of the probabilities of the answer's tokens with the segment (probability) and without, the change of "
    "its logarithm in nats, and the token that becomes less likely by the largest factor (at), before and after. Of "
    "two segments that say the same, each can be left out alone.",
)
_BANDS = (
    "Lines are means of all rows. Bands reach from the least to the greatest attention in any alternative, estimated "
    "where rows were drawn, and left out where there are fewer than four of a token or layer, or all are alike.",
)
_MAPS = ("Rows are the tokens of the answer, columns the segments; with --matrices also all keys.",)
