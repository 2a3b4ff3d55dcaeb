"""The results of reading texts from what is stored of them: margins, errors of storage, and what is certified."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import lines
from identilens.charts.labels import said
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine, first_tokens
from identilens.charts.views import View
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, decimals, integers

NEXT, SINGLE = "next token", "one token"
"""What differs between a text and its rivals: its next token, the beginning being known; or one within it."""

SHOWN = 3
"""Texts that are shown as lines of tokens."""

_WHOLE = {name: pl.col(f"{name}_to") == pl.col("tokens") for name in ("certified", "recovered")}
"""Whether a text is certified or recovered from its first token to its last; see `Inversion.by_text`."""
_NOTE = """\
position {position}: margin {margin:.4g}
error {error:.4g}
nearest rival {rival!r}
decoded as {decoded!r}
"""
_FINDING = """\
The margin of {stored}, half the distance to the nearest rival (the state with another token in its place), is \
{least:.1%} to {most:.1%} of their length: medians by layer, over {texts:text}.
With the noise {noise} the error is below the margin at {below_least:.1%} to {below_most:.1%} of the places, by layer.
With it {certified_texts_least:.1%} to {certified_texts_most:.1%} of whole texts are certified; decoding gives \
{recovered_texts_least:.1%} to {recovered_texts_most:.1%}.
"""
_TILES = """\
{below_least:.1%} | of places have a margin above the error with the noise {noise}, at the layer with fewest
"""
_LINES = """\
Each token with its margin, at the deepest layer, in percent of the length of its state, or, where the model reads on \
both sides, of all states of the text together. Point at a token to read its nearest rival.
A position ({positions:,} in all) is certified if here, and at every position before, the error is smaller than half \
the distance to the nearest other token's state after the same beginning, less the noise of the forward pass: then \
decoding token by token gives exactly the text. Other positions may be read, too: what decoding finds is measured.
Margins are half the distance to the nearest of the texts that were tried, with one other token ({changes:position}). \
An error below them is necessary to certify every error of its length, not to read this text. It is not sufficient: \
other texts may come nearer, and nothing is certified.
Gaussian noise has no largest length: a text that is certified with it is spoilt all the same with a probability of at \
most {risk:g}.
"""
_BITS = """\
The share of positions whose error is below the margin, or which decoding gives in fact.
Of the numbers of bits that were tried, the fewest that certify a whole text are at most {certified_bits}, by text and \
layer, where any do; the fewest with which decoding gives it in fact are at most {recovered_bits}.
"""
_PLACE = {**integers("text", "layer", "position"), "change": pl.String}
_SURE = Mark("certified", "●", 0, strong=True)
_READ = Mark("decoded, not certified", "○", 1)
_LOST = Mark("error above the margin, not decoded", "△", 1, strong=True)
_BELOW = Mark("error below the margin", "◐", 0)


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
            **decimals("norm", "margin", "relative_margin", "forward_noise"),
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
        recovered = pl.col("recovered")
        return groups.agg(
            pl.len().alias("tokens"),
            pl.col("certified").sum().alias("certified_to"),
            # What decoding gives is known of causal models alone.
            pl.when(recovered.count() > 0).then(recovered.cum_min().sum()).alias("recovered_to"),
            pl.col("below").mean(),
            recovered.mean(),
        )

    def by_layer(self) -> pl.DataFrame:
        """Return for each layer and noise the share of positions below the margin, certified and recovered.

        Positions count as recovered if decoding succeeds with the beginning known; certified and recovered texts are
        those of which every token is. What decoding gives is missing of an encoder.
        """
        tokens = pl.col("tokens")
        texts = self.by_text().group_by("layer", "noise", "bits", maintain_order=True)
        layers = texts.agg(
            tokens.sum().alias("positions"),
            (pl.col("below") * tokens).mean() / tokens.mean(),
            pl.col("certified_to").mean().alias("certified") / tokens.mean(),
            (pl.col("recovered") * tokens).mean() / tokens.mean(),
            pl.len().alias("texts"),
            *(every.mean().alias(f"{name}_texts") for name, every in _WHOLE.items()),
        )
        return layers.sort("layer", maintain_order=True)

    def bits(self) -> pl.DataFrame:
        """Return for each text and layer the fewest bits of those tried with which the whole text is certified.

        ``recovered_bits``: the fewest with which greedy decoding gives the whole text in fact. Missing if none does.
        """
        tried = self.by_text().drop_nulls("bits").group_by("text", "layer", maintain_order=True)
        fewest = {
            f"{name}_bits": pl.col("bits").filter(every).min() for name, every in _WHOLE.items()
        }
        return tried.agg(pl.col("tokens").first(), **fewest)

    def swept(self) -> pl.DataFrame:
        """Return the shares of positions by layer and number of bits."""
        return self.by_layer().drop_nulls("bits").sort("layer", "bits")

    def summary(self) -> Finding:
        """Return how large margins are, and what can be read with the noise, of those asked for, that hides most."""
        margin, shares = pl.col("relative_margin"), pl.col("below", "^.*_texts$")
        layers = self.table.group_by("layer").agg(margin.median())
        places, causal = len(self.table) // len(layers), self.table["change"][0] == NEXT
        numbers = pl.concat(
            [
                layers.select(least=margin.min(), most=margin.max()),
                self.bits().select(pl.col("^.*_bits$").max()),
                self.by_layer()
                .filter(noise=self._noise)
                .select(shares.min().name.suffix("_least"), shares.max().name.suffix("_most")),
            ],
            how="horizontal",
        )
        settings = self.provenance["settings"]
        return Finding.of(
            _FINDING,
            _TILES,
            stored=STORED[settings["stored"]],
            texts=self.table["text"].n_unique(),
            positions=places if causal else None,
            changes=None if causal else places,
            noise=self._noise,
            risk=settings.get("risk") if causal else None,
            **numbers.row(0, named=True),
        )

    @property
    def _noise(self) -> str:
        """The noise, of those asked for or else of all, with which fewest margins of a layer are above the error."""
        asked = pl.col("noise").is_in(self.provenance["settings"]["noise"])
        return self.by_layer().sort(~asked, "below", maintain_order=True)["noise"][0]

    def token_lines(self) -> list[TokenLine]:
        """Return the first texts as lines of tokens, each with its margin at the deepest layer and its nearest rival.

        Marked by what holds at the noise of the finding.
        """
        layer = self.table["layer"].max()
        deep = self.noises.filter(layer=layer, noise=self._noise)
        places = self.table.join(deep, on=list(_PLACE), maintain_order="left")
        lines = []
        for rows in places.partition_by("text", maintain_order=True)[:SHOWN]:
            title, shown = first_tokens(
                f"text {rows['text'][0]}, layer {layer}, with the noise {self._noise}; in per cent the margin",
                rows,
            )
            tokens = [_marked(row) for row in shown.to_dicts()]
            marks = dict.fromkeys(token.mark for token in tokens)
            lines.append(TokenLine(title, tokens, [(mark, "") for mark in marks]))
        return lines


def _marked(row: Row) -> MarkedToken:
    """Return a token with its margin and what holds at its place."""
    mark = _READ if row["recovered"] else _LOST
    if row["below"]:
        mark = _SURE if row["certified"] else _BELOW
    note = "; ".join(said(_NOTE, row))
    return MarkedToken(row["token"], mark, f"{row['relative_margin']:.0%}", note)


@dataclass(frozen=True, kw_only=True)
class Inverted:
    """A text as it was read from what is stored of it.

    Attributes:
        ids: Its token ids.
        distances: Distance of each state to that of the token that was read.
        margins: Half the distance from that to every other token's, or less.
        certified: Whether no error below the margins, here and before, can have led here from another text.
        forward_noise: How far the states of the text move if they run in another way.
        tokens: Names of the tokens.
    """

    ids: tuple[int, ...]
    distances: tuple[float, ...]
    margins: tuple[float, ...]
    certified: tuple[bool, ...]
    forward_noise: float
    tokens: tuple[str, ...] = ()


STORED = {"states": "hidden states", "cache": "keys and values"}
