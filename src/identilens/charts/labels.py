"""Tokens, names and numbers as people can read them: nothing invisible, nothing that moves other text about."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import pairwise
from math import isfinite
from string import Formatter
from typing import Any

import polars as pl

from identilens.runs.terminal import printable

_LONGEST = 60

SIDES = {
    **dict.fromkeys(["lo", "sink_lo", "certain_mass", "certain_mass_bfloat16", "radius"], -1),
    **dict.fromkeys(["hi", "sink_hi", "distance_bound", "distance_bound_bfloat16"], 1),
}
"""Columns of proven ends: lower ones (−1) are never rounded up, upper ones (1) never down."""

_RANGE = re.compile("(?:from )?({[^{}]+}) to ({[^{}]+})|between ({[^{}]+}) and ({[^{}]+})")
"""A range in a template, its ends by name."""

ROUNDING = 1e-12
"""What sums of proven ends in double precision may be off by."""


def visible_text(token: str) -> str:
    """Return a token with its outer spaces and all control and direction characters written out; "∅" for none.

    WordPiece's mark of a word's middle, ##, becomes "…".
    """
    if not token:
        return "∅"
    token = re.sub("^##(?=[^#])", "…", token)
    return printable(re.sub(r"\A +| +\Z", lambda spaces: "␣" * len(spaces[0]), token))


def word_pieces(tokens: Sequence[str]) -> list[tuple[str, bool]]:
    """Return each token without marks of spaces or of a word's middle, and whether it continues the word before it."""
    spaced, pieces = any(map(re.compile(" [^ ]").match, tokens)), []
    for before, token in pairwise([" ", *tokens]):
        # Where words have a space before them, a letter after a letter is within a word.
        joined = spaced and before[-1:].isalnum() and token[:1].isalnum()
        name = re.sub("^( |##)(?=[^ #])", "", token)
        pieces.append((name, joined or token.startswith("##")))
    return pieces


def shortened(text: str, limit: int) -> str:
    """Return text of at most ``limit`` characters, cut in the middle where it was longer."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def rounded_end(end: Any, form: str, side: int) -> str:
    """Return a value in words: a proven lower end (side −1) never rounded up, an upper one (1) never down."""
    said = format(end, form)
    # What is no number, or infinite, is not rounded.
    if not side or not side * (end - float(said)) > ROUNDING * max(1.0, abs(end)):
        return said
    # With "#", trailing zeros stay: the last of them is the unit.
    last = Decimal(format(end, re.sub("^z?", r"\g<0>#", form)))
    unit = Decimal(1).scaleb(int(last.as_tuple().exponent))
    # Below a power of ten the last digit has a tenth of that unit.
    finer = format(float(last + side * unit / 10), form)
    inward = side * (end - float(finer)) > 0
    return format(float(last + side * unit), form) if inward else finer


class _Words(Formatter):
    """Numbers as sentences have them, by the form that stands behind their name."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value in words: counted, as a share, as a proven end, or as Python formats it."""
        if format_spec[-3:].isalpha() and len(format_spec) > 2:
            return f"{value:,} {format_spec}{'' if value == 1 else 's'}"
        side, form = {"≥": -1, "≤": 1}.get(format_spec[:1], 0), format_spec.lstrip("≥≤")
        if form.endswith("%"):
            return f"{rounded_end(100 * value, f'{form[:-1]}f', side)} %"
        return rounded_end(value, form, side)


def said(template: str, numbers: Mapping[str, Any]) -> list[str]:
    """Return the lines of a template filled with numbers by name; a line without one of its numbers is left out.

    Forms: ``{texts:text}`` counts (1 text, 1,200 texts), ``{share:.1%}`` is a share, ``{low:≥.3g}`` a lower end that is
    never rounded up, ``{high:≤.1%}`` an upper end; all others are Python's.
    """
    words, lines = _Words(), []
    for line in template.splitlines():
        if None not in [numbers.get(name) for _, name, _, _ in words.parse(line) if name]:
            lines.append(words.vformat(_RANGE.sub(partial(_once, numbers), line), (), numbers))
    return lines


def _once(numbers: Mapping[str, Any], ends: re.Match[str]) -> str:
    """Return a range, or one of its ends where both are the same in words."""
    fields = list(filter(None, ends.groups()))
    same = len({_Words().vformat(end, (), numbers) for end in fields}) == 1
    return fields[0] if same else ends[0]


def cell(value: Any, column: str = "") -> str:
    """Return a value as a table of a page or a terminal has it; a proven end is rounded outward."""
    if value in (None, "") or (isinstance(value, float) and not isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    if isinstance(value, float):
        return rounded_end(value, "z.4g", SIDES.get(column, 0))
    return visible_text(str(value))


def outward(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose columns of proven ends are rounded outward, to three digits."""
    return frame.with_columns(
        pl.col(name).map_elements(
            lambda end, side=SIDES[name]: float(rounded_end(end, "z.3g", side)), pl.Float64
        )
        for name in SIDES.keys() & frame.columns
    )


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return a part of a file name for each name: its letters and digits, and its number if others have the same."""
    plain = {
        name: re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_LONGEST] or "type" for name in names
    }
    several = [*plain.values()]
    return {
        name: word if several.count(word) == 1 else f"{word}_{number}"
        for number, (name, word) in enumerate(plain.items())
    }
