"""The results of reading texts from what is stored of them: margins, errors of storage, and what is certified."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import lines
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine, first_tokens
from identilens.charts.views import View
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, percent

NEXT, SINGLE, PAIR = "next token", "one token", "two neighbours"
"""What differs between a text and its rivals: its next token, the beginning being known; or tokens within it."""

SHOWN = 3
"""Texts that are shown as lines of tokens."""

_WHOLE = ("certified_texts", "recovered_texts")
_FINDING = """\
The margin of {stored}, half the distance to the nearest rival (the state with another token in its place), is \
{least:.1%} to {most:.1%} of their length: medians by layer, over {texts:text}.
With {noise} the error is below the margin at {below_least:.1%} to {below_most:.1%} of the places, by layer.
With it {certified_texts_least:.1%} to {certified_texts_most:.1%} of whole texts are certified; decoding gives \
{recovered_texts_least:.1%} to {recovered_texts_most:.1%}.
"""
_TILES = """\
{below_least:.1%} | of places have a margin above the error with {noise}, at the layer with fewest
"""
_LINES = """\
Each token with its margin in percent of the length of its state, at the deepest layer. Point at a token to read its \
nearest rival.
A position ({positions:,} in all) is certified if here, and at every position before, the error is smaller than half \
the distance to the nearest other token's state after the same beginning, less the noise of the forward pass: then \
decoding token by token gives exactly the text. Other positions may be read, too: what decoding finds is measured.
Margins are half the distance to the nearest of the texts that were tried ({changes:,} changes of one token or of two \
neighbours). An error below them is necessary to certify every error of its length, not to read this text. It is not \
sufficient: other texts may come nearer, and nothing is certified.
Gaussian noise has no largest length: a text that is certified with it is spoilt all the same with a probability of at \
most {risk:g}.
"""
_BITS = """\
The share of positions whose error is below the margin, or which decoding gives in fact.
Of the numbers of bits that were tried, the fewest that certify a whole text are at most {certified_bits}, by text and \
layer, where any do; the fewest with which decoding gives it in fact are at most {recovered_bits}.
"""
_PLACE = {"text": pl.Int64, "layer": pl.Int64, "position": pl.Int64, "change": pl.String}
_SURE = Mark("certified", "●", 0, strong=True)
_READ = Mark("decoded, not certified", "○", 1)
_LOST = Mark("not decoded", "△", 1, strong=True)
_BELOW = Mark("error below the margin", "◐", 0)
_ABOVE = Mark("error above the margin", "△", 1, strong=True)


@dataclass(frozen=True, kw_only=True)
class Inversion(Result):
    """How well texts can be read from what is stored of them, and how coarsely it must be stored to prevent it.

    Attributes:
        table: Margin and nearest rival: one row for each text, layer and position.
        noises: Error of each noise, whether it is below the margin less the noise of the forward pass, whether the text
            is certified up to here, and what decoding to the nearest gives, the beginning known.

    Examples:
        >>> import identilens as idl
        >>> found = idl.inversion(idl.load("bundled-decoder"), "Snow fell.", layers=4, noise="int4", bits=8)
        >>> found.by_text().select("noise", "tokens", "certified_to", "recovered_to").rows()
        [('int4', 6, 5, 6), ('int8', 6, 6, 6)]
    """

    analysis: ClassVar = "inversion"
    title: ClassVar = "Is the text in what is stored of it"
    schema: ClassVar = {
        "table": {
            **_PLACE,
            "token": pl.String,
            "norm": pl.Float64,
            "margin": pl.Float64,
            "relative_margin": pl.Float64,
            "forward_noise": pl.Float64,
            "rival": pl.String,
        },
        "noises": {
            **_PLACE,
            "noise": pl.String,
            "bits": pl.Int64,
            "error": pl.Float64,
            "below": pl.Boolean,
            "certified": pl.Boolean,
            "decoded": pl.String,
            "recovered": pl.Boolean,
        },
    }

    words: ClassVar = {
        "bits": "Bits of a number, one scale for each token",
        "value": "Share of positions",
        "below": "below: the share of positions whose error is below the margin",
        "recovered": "recovered: the share that decoding gives in fact",
    }
    views: ClassVar = {
        "lines": View(title="The text, token by token", text=_LINES, lines="token_lines"),
        "bits": View(
            lines,
            ("bits", ("below", "recovered"), "layer"),
            title="Share of positions against bits, by layer",
            text=_BITS,
            table="swept",
            look={"y_domain": (0, 1)},
        ),
        "layers": View(title="By layer and noise", table="by_layer", listed=True),
    }

    noises: pl.DataFrame

    def by_text(self) -> pl.DataFrame:
        """Return for each text, layer and noise how many tokens from its start are certified or recovered."""
        groups = self.noises.group_by("text", "layer", "noise", "bits", maintain_order=True)
        return groups.agg(
            pl.len().alias("tokens"),
            pl.col("certified").sum().alias("certified_to"),
            pl.col("recovered").cast(pl.Int64).cum_min().sum().alias("recovered_to"),
            pl.col("below").mean().alias("below"),
        )

    def by_layer(self) -> pl.DataFrame:
        """Return for each layer and noise the share of positions below the margin, certified and recovered.

        Positions count as recovered if decoding succeeds with the beginning known; certified and recovered texts are
        those of which every token is. An encoder has none of these columns.
        """
        texts = self.by_text().group_by("layer", "noise", maintain_order=True)
        whole = texts.agg(
            pl.len().alias("texts"),
            (pl.col("certified_to") == pl.col("tokens")).mean().alias("certified_texts"),
            (pl.col("recovered_to") == pl.col("tokens")).mean().alias("recovered_texts"),
        )
        groups = self.noises.group_by("layer", "noise", "bits", maintain_order=True)
        shares = groups.agg(
            pl.len().alias("positions"), pl.col("below", "certified", "recovered").mean()
        )
        found = shares.join(whole, on=["layer", "noise"], maintain_order="left")
        known = pl.all() if self._causal else pl.exclude("^(certified|recovered).*$")
        return found.select(known).sort("layer", maintain_order=True)

    def bits(self) -> pl.DataFrame:
        """Return for each text and layer the fewest bits of those tried with which the whole text is certified.

        ``recovered_bits``: the fewest with which greedy decoding gives the whole text in fact. Missing if none does.
        """
        tried = self.by_text().drop_nulls("bits")
        whole = {
            name: pl.col("bits").filter(pl.col(f"{name}_to") == pl.col("tokens")).min()
            for name in ("certified", "recovered")
        }
        return tried.group_by("text", "layer", maintain_order=True).agg(
            pl.col("tokens").first(),
            **{f"{name}_bits": fewest for name, fewest in whole.items()},
        )

    def swept(self) -> pl.DataFrame:
        """Return the shares of positions by layer and number of bits."""
        shares = self.by_layer().drop_nulls("bits").sort("layer", "bits")
        known = pl.DataFrame(schema={"recovered": pl.Float64})
        return pl.concat([shares, known], how="diagonal")

    def summary(self) -> Finding:
        """Return how large margins are, and what can be read with the noise, of those asked for, that hides most."""
        margins = self.table.group_by("layer").agg(pl.col("relative_margin").median())
        count = len(self.table) // self.table["layer"].n_unique()
        noise = self._noise
        shares = self.by_layer().filter(noise=noise)
        names = [one for one in ("below", *_WHOLE) if one in shares.columns]
        numbers = {f"{one}_least": shares[one].min() for one in names}
        numbers |= {f"{one}_most": shares[one].max() for one in names}
        bits = self.bits() if self._causal else pl.DataFrame()
        numbers |= {one: bits[one].max() for one in bits.columns if one.endswith("_bits")}
        return Finding.of(
            _FINDING,
            _TILES,
            stored=STORED[self.provenance["settings"]["stored"]],
            least=margins["relative_margin"].min(),
            most=margins["relative_margin"].max(),
            texts=self.table["text"].n_unique(),
            positions=count if self._causal else None,
            changes=None if self._causal else count,
            noise=_named(noise),
            risk=self.provenance["settings"].get("risk") if self._causal else None,
            **numbers,
        )

    @property
    def _noise(self) -> str:
        """The noise, of those asked for or else of all, with which fewest margins of a layer are above the error."""
        layers = self.by_layer().sort("below", maintain_order=True)
        asked = layers.filter(pl.col("noise").is_in(self.provenance["settings"]["noise"]))
        return (asked if len(asked) else layers)["noise"][0]

    @property
    def _causal(self) -> bool:
        return self.table["change"].first() == NEXT

    def token_lines(self) -> list[TokenLine]:
        """Return the first texts as lines of tokens, each with its margin at the deepest layer and its nearest rival.

        Marked by what holds at the noise of the finding.
        """
        layer, noise = self.table["layer"].max(), self._noise
        stored = STORED[self.provenance["settings"]["stored"]]
        change = self.table["change"].first()
        deep = self.noises.filter(layer=layer, change=change, noise=noise)
        places = self.table.join(deep, on=list(_PLACE), maintain_order="left")
        lines = []
        for rows in places.partition_by("text", maintain_order=True)[:SHOWN]:
            title = (
                f"text {rows['text'][0]}, {stored} of layer {layer}, with {_named(noise)}; in per cent the margin: "
                "half the distance to the nearest other token's state, of the state's length"
            )
            title, shown = first_tokens(title, rows)
            marked = [_marked(row) for row in shown.iter_rows(named=True)]
            marks = (_SURE, _BELOW, _READ, _LOST) if self._causal else (_BELOW, _ABOVE)
            legend = [(mark, str(sum(one.mark is mark for one in marked))) for mark in marks]
            lines.append(TokenLine(title, marked, legend))
        return lines


@dataclass(frozen=True, kw_only=True)
class Inverted:
    """A text as it was read from what is stored of it.

    Attributes:
        ids: Its token ids.
        distances: Distance of each state to that of the token that was read.
        margins: Half the distance from that to every other token's, or less; empty for an encoder.
        certified: Whether no error below the margins, here and before, can have led here from another text. Of an
            encoder: whether the text has all states within the noise that was given, which others may have, too.
        forward_noise: How far the states of the text move if they run in another way; 0 for an encoder.
        tokens: Names of the tokens.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> [captured] = lens.capture("Snow fell.", hidden_states=True)
        >>> found = idl.invert(lens, captured.hidden_states["encoder"][4], layer=4)
        >>> type(found).__name__, found.tokens[1:4], max(found.distances) < min(found.margins)
        ('Inverted', ('S', 'now', ' f'), True)
    """

    ids: tuple[int, ...]
    distances: tuple[float, ...]
    margins: tuple[float, ...]
    certified: tuple[bool, ...]
    forward_noise: float
    tokens: tuple[str, ...] = ()


STORED = {"states": "hidden states", "cache": "keys and values"}


def _marked(row: Row) -> MarkedToken:
    decoded = f"; decoded as {row['decoded']!r}"
    mark = _READ if row["recovered"] else _LOST
    if row["recovered"] is None:
        decoded, mark = "", _ABOVE
    if row["below"]:
        mark = _SURE if row["certified"] else _BELOW
    note = (
        f"position {row['position']}: margin {row['margin']:.4g} ({percent(row['relative_margin'])}); error "
        f"{row['error']:.4g}; nearest rival {row['rival']!r}{decoded}"
    )
    return MarkedToken(row["token"], mark, f"{100 * row['relative_margin']:.0f} %", note)


def _named(noise: str) -> str:
    return f"noise of {100 * float(noise):g} % of the length" if noise[0].isdigit() else noise
