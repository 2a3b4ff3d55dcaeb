"""Tagged sentences from CoNLL-U files: words placed in the text by character offsets."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Literal

from identilens.errors import InputError
from identilens.runs.lines import (
    MAX_TEXT_BYTES,
    READ_ERRORS,
    Limit,
    MostBytes,
    is_stream,
    numbered_lines,
    open_text,
)
from identilens.runs.settings import in_order

Tags = Literal["xpos", "upos"]
"""The treebank's own tags (Penn tags for English), or universal ones."""

Span = tuple[int, int, str]
"""(start, end, tag): characters start to end - 1 of a text belong to a word with that tag."""


@dataclass(frozen=True)
class Word:
    """A word of a text: its characters are ``start`` to ``end`` - 1, ``xpos`` the treebank's own tag."""

    start: int
    end: int
    xpos: str
    upos: str


class TaggedText(str):
    """A text with its words and their tags, in order; it is also a plain string."""

    words: tuple[Word, ...]

    def __new__(cls, text: str, words: Iterable[Word] = ()) -> "TaggedText":
        """Return the text with its words."""
        made = super().__new__(cls, text)
        made.words = tuple(words)
        return made

    def spans(self, tags: Tags = "xpos") -> list[Span]:
        """Return the characters of each word with its tag of one kind."""
        return [(word.start, word.end, getattr(word, tags)) for word in self.words]


def read_conllu(
    path: str | Path, limit: int | None = None, max_text_bytes: int = MAX_TEXT_BYTES
) -> list[TaggedText]:
    """Return the sentences of a CoNLL-U file (also .gz or .xz) as texts that contain their words with both tags.

    A sentence's text is its ``# text`` comment. Words written as one (``cannot``) are split if their forms spell it;
    otherwise the whole word gets the tags of its first part. Words that are not written (``8.1``) are skipped.

    Raises:
        InputError: For a missing file, a sentence without text, a malformed line or a word not found in its text,
            naming the line.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp()) / "bank.conllu"
        >>> word = "1 Gladly gladly ADV RB _ 0 root _ _".replace(" ", chr(9))
        >>> _ = file.write_text(f"# text = Gladly{chr(10)}{word}{chr(10)}{chr(10)}")
        >>> [text] = idl.read_conllu(file)
        >>> text, text.spans("upos")
        ('Gladly', [(0, 6, 'ADV')])
    """
    limit = in_order("limit", Limit, limit)
    max_text_bytes = in_order("max_text_bytes", MostBytes, max_text_bytes)
    if not isinstance(path, str | Path):
        raise InputError(f"expected the path of a CoNLL-U file; got {type(path).__name__}.")
    path = Path(path)
    is_stream(path)
    try:
        with open_text(path, most=max_text_bytes, errors="surrogateescape") as stream:
            lines = ((number, line.rstrip("\n")) for number, line in numbered_lines(stream, path))
            blocks = (
                list(block)
                for filled, block in groupby(lines, lambda line: bool(line[1].strip()))
                if filled
            )
            sentences = [_sentence(block, path) for block in islice(blocks, limit)]
    except READ_ERRORS as error:
        raise InputError(
            f"{path} cannot be read: {error}. Pass a CoNLL-U file in UTF-8."
        ) from error
    if not sentences:
        raise InputError(f"{path} contains no sentences. Pass a CoNLL-U file.")
    return sentences


def _sentence(lines: list[tuple[int, str]], path: Path) -> TaggedText:
    text = next(
        (line.removeprefix("# text = ") for _, line in lines if line.startswith("# text = ")), None
    )
    if text is None:
        raise InputError(
            f"{path}, line {lines[0][0]}: the sentence has no '# text = ' comment, so words cannot be placed."
        )
    rows = [(number, line.split("\t")) for number, line in lines if not line.startswith("#")]
    for number, row in rows:
        if len(row) != 10:
            raise InputError(f"{path}, line {number}: expected 10 columns, got {len(row)}.")
        if re.fullmatch(r"\d+([-.]\d+)?", row[0]) is None:
            raise InputError(
                f"{path}, line {number}: expected a word's number such as 3, 3-4 or 3.1; got {row[0]!r}."
            )
    return TaggedText(text, _placed(text, [row for row in rows if "." not in row[1][0]], path))


def _placed(text: str, rows: list[tuple[int, list[str]]], path: Path) -> Iterator[Word]:
    position = index = 0
    while index < len(rows):
        line, (name, form, *_) = rows[index]
        start = text.find(form, position)
        if start < 0 or text[position:start].strip():
            raise InputError(
                f"{path}, line {line}: the word {form!r} is not the next word of the sentence's text."
            )
        position = start + len(form)
        first, _, last = name.partition("-")
        parts = (
            [row for _, row in rows[index + 1 : index + 2 + int(last) - int(first)]]
            if last
            else [rows[index][1]]
        )
        index += 1 + (len(parts) if last else 0)
        # Words that do not spell what is written for them are one word.
        forms = (
            [part[1] for part in parts] if "".join(part[1] for part in parts) == form else [form]
        )
        for part, written in zip(parts, forms, strict=False):
            yield Word(start, start + len(written), xpos=part[4], upos=part[3])
            start += len(written)
