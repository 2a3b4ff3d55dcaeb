"""A line of tokens, each marked by what was found of it, for the terminal, a notebook and a page.

A mark is a sign and words beside its colour, so that nothing rests on colour alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import polars as pl
from rich.text import Text

from identilens.charts.figures import own_file
from identilens.charts.labels import visible_text, word_pieces
from identilens.charts.palette import LIGHT

LONGEST = 2_000
"""Tokens of a line that are shown."""
_TERMINAL = ("cyan", "yellow", "green", "magenta", "blue", "white", "bright_blue", "bright_yellow")
"""Colours of the palette's series in a terminal, which has its own light and dark."""


@dataclass(frozen=True)
class Mark:
    """How some tokens are marked.

    Attributes:
        label: What it means.
        sign: One character, for those who do not see the colour.
        series: Colour, as a place in the palette's series; None leaves tokens plain.
        strong: Whether the colour fills, or only frames.
    """

    label: str
    sign: str
    series: int | None
    strong: bool = False

    @property
    def terminal(self) -> str:
        """The style in a terminal."""
        if self.series is None:
            return "dim"
        return f"{'bold reverse' if self.strong else 'underline'} {_TERMINAL[self.series]}"

    @property
    def classes(self) -> str:
        """The classes in a page."""
        return (
            "token plain"
            if self.series is None
            else f"token series-{self.series}{' strong' * self.strong}"
        )


@dataclass(frozen=True)
class MarkedToken:
    """A token with its mark, a number in words, and a note to read: on hovering, on a click, or by keyboard."""

    token: str
    mark: Mark
    value: str = ""
    note: str = ""


@dataclass(frozen=True)
class TokenLine:
    """Tokens in their order under a title; the legend gives every mark, with a number of its own."""

    title: str
    tokens: Sequence[MarkedToken]
    legend: Sequence[tuple[Mark, str]]

    def text(self) -> Text:
        """Return the line for a terminal: title, legend, tokens."""
        line = Text(f"{visible_text(self.title)}\n")
        for mark, value in self.legend:
            line.append(f"{mark.sign} {mark.label}", mark.terminal).append(f" {value}   ")
        line.append("\n")
        for part, (name, inside) in self._named():
            value = f"[{part.mark.sign}{part.value}]"
            value *= bool(part.value) or part.mark.series is not None
            line.append(" "[inside:]).append(visible_text(name) + value, part.mark.terminal)
        return line

    def html(self) -> str:
        """Return the line as an element of a page that has the style sheet of lines."""
        legend = [_span(mark, f"{mark.sign} {mark.label}", value) for mark, value in self.legend]
        tokens = [
            ("<wbr>" if inside else " ")
            + _span(part.mark, visible_text(name), part.mark.sign + part.value, part.note)
            for part, (name, inside) in self._named()
        ]
        return (
            f'<figure class="token-line"><h3>{escape(visible_text(self.title))}</h3>'
            f'<p class="legend">{" ".join(legend)}</p><p>{"".join(tokens)}</p></figure>'
        )

    def _named(self) -> Any:
        """Return each token with its name and whether it continues a word."""
        return zip(self.tokens, word_pieces([part.token for part in self.tokens]), strict=True)


def first_tokens(title: str, rows: pl.DataFrame) -> tuple[str, pl.DataFrame]:
    """Return the title of a line, with the number of tokens of a longer one, and the rows that it shows."""
    count = len(rows)
    more = f", the first {LONGEST:,} of {count:,} tokens" if count > LONGEST else ""
    return title + more, rows.head(LONGEST)


def notebook_html(lines: Sequence[TokenLine]) -> str:
    """Return lines with their style, on a light ground of their own: a notebook's look is not known."""
    if not lines:
        return ""
    colors = "".join(f"--{name}: {color}; " for name, color in LIGHT.variables.items())
    ground = "background: var(--surface); color: var(--ink); padding: 0.5rem;"
    figures = "".join(line.html() for line in lines)
    style = f"<style>{own_file('token_lines.css')}</style>"
    return f'{style}<div style="{colors}{ground}">{figures}</div>'


def _span(mark: Mark, words: str, value: str, note: str = "") -> str:
    title = f' title="{escape(note)}" tabindex="0"' if note else ""
    return (
        f'<span class="{mark.classes}"{title}>{escape(words)} <small>{escape(value)}</small></span>'
    )
