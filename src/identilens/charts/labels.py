"""Tokens and names as people can read them: nothing invisible, nothing that moves other text about."""

import re
import unicodedata
from collections.abc import Iterable

from identilens.runs.terminal import printable

_LONGEST = 60


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


def shortened(text: str, limit: int) -> str:
    """Return text of at most ``limit`` characters, cut in the middle where it was longer."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return a part of a file name for each name, no two the same, equal on every run.

    Letters and digits are kept; a name of marks only is spelled out ("." becomes "full_stop").
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_LONGEST]
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
