"""Tokens, names and numbers as people can read them: nothing invisible, nothing that moves other text about."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

from identilens.runs.terminal import printable

_LONGEST = 60

_SIDES = {"lo": -1, "sink_lo": -1, "certain_mass": -1, "hi": 1, "sink_hi": 1}
"""Columns of proven ends, and to which side they are rounded."""

ROUNDING = 1e-12
"""What sums of proven ends in double precision may be off by."""


def visible_text(token: str) -> str:
    """Return a token with its outer spaces and all control and direction characters written out; "∅" for none.

    WordPiece's mark of a word's middle, ##, becomes "…".
    """
    if not token:
        return "∅"
    token = re.sub("^##(?=[^#])", "…", token)
    inner = token.strip(" ")
    start = len(token) - len(token.lstrip(" "))
    return "␣" * start + printable(inner) + "␣" * (len(token) - start - len(inner))


def word_pieces(tokens: Sequence[str]) -> list[tuple[str, bool]]:
    """Return each token without marks of spaces or of a word's middle, and whether it continues the word before it."""
    spaced, found = any(map(re.compile(" [^ ]").match, tokens)), []
    for before, token in pairwise([" ", *tokens]):
        # Where words have a space before them, a letter after a letter is within a word.
        joined = spaced and before[-1:].isalnum() and token[:1].isalnum()
        name = re.sub("^( |##)(?=[^ #])", "", token)
        found.append((name, joined or token.startswith("##")))
    return found


def shortened(text: str, limit: int) -> str:
    """Return text of at most ``limit`` characters, cut in the middle where it was longer."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def lower(low: Any, form: str) -> str:
    """Return a proven lower end in words, never rounded up."""
    return rounded_end(low, form, -1)


def upper(high: Any, form: str) -> str:
    """Return a proven upper end in words, never rounded down."""
    return rounded_end(high, form, 1)


def rounded_end(end: float, form: str, side: int) -> str:
    """Return a number in words, rounded down (side −1), up (1) or to the nearest (0)."""
    said = format(end, form)
    # What is no number, or infinite, is not rounded.
    if not side * (end - float(said)) > ROUNDING * max(1.0, abs(end)):
        return said
    # With "#", trailing zeros stay: the last of them is the unit.
    last = Decimal(format(end, re.sub("^z?", r"\g<0>#", form)))
    unit = Decimal(1).scaleb(int(last.as_tuple().exponent))
    return format(float(last + side * unit), form)


def table_number(column: str, value: float) -> str:
    """Return a number of a table in words; a proven end is rounded outward."""
    return rounded_end(value, "z.4g", _SIDES.get(column, 0))


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return a part of a file name for each name, no two the same, equal on every run.

    Letters and digits are kept, those of a long name at its beginning and its end; a name of marks only is spelled out
    ("." becomes "full_stop").
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
        if len(plain) > _LONGEST:
            plain = plain[: _LONGEST // 2] + plain[-_LONGEST // 2 :]
        if not plain:
            marks = [mark for mark in name if mark != " "]
            words = [unicodedata.name(mark, f"u{ord(mark):04x}").lower() for mark in marks]
            plain = re.sub(r"[^a-z0-9]+", "_", "_".join(words))[:_LONGEST]
        base, count = plain or "type", 1
        # Compared without case: some file systems do not tell "A" from "a".
        while plain.lower() in taken or not plain:
            count += 1
            plain = f"{base}_{count}"
        taken.add(plain.lower())
        found[name] = plain
    return found
