"""Sentences of a treebank from CoNLL-U files: words with tags and heads, placed in the text by character offsets."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Literal

from identilens.errors import InputError
from identilens.runs.lines import MAX_TEXT_BYTES, Limit, MostBytes, read_lines
from identilens.runs.settings import coerce

Tags = Literal["xpos", "upos"]
"""The treebank's own tags (Penn tags for English), or universal ones."""

Span = tuple[int, int, str]
"""(start, end, tag): characters start to end - 1 of a text belong to a word with that tag."""

_COMMENT = "# text = "

_MOST_LINES = 100_000
"""Largest number of lines of a sentence."""


@dataclass(frozen=True)
class Word:
    """A word of a text: its characters are ``start`` to ``end`` - 1, ``xpos`` the treebank's own tag.

    ``head`` is the index of the word that it depends on by its ``relation``, None for the root of the sentence and
    where the file names no word of it.
    """

    start: int
    end: int
    xpos: str
    upos: str
    head: int | None = None
    relation: str = ""


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
    """Return the sentences of a CoNLL-U file (also .gz or .xz) as texts with their words: both tags, head and relation.

    A sentence's text is its ``# text`` comment. Words written as one (``cannot``) are split if their forms spell it;
    otherwise the whole word gets the tags of its first part. Words that are not written (``8.1``) are skipped.

    Raises:
        InputError: For a missing file, a sentence without text or with two, a malformed line, a word not found in its
            text, or words that are missing, naming the line.

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
    limit = coerce("limit", Limit, limit)
    max_text_bytes = coerce("max_text_bytes", MostBytes, max_text_bytes)
    if not isinstance(path, str | Path):
        raise InputError(f"expected the path of a CoNLL-U file; got {type(path).__name__}.")
    lines = (
        (position, line.rstrip("\r\n"))
        for position, line in read_lines(Path(path), most=max_text_bytes)
    )
    blocks = groupby(lines, lambda line: bool(line[1].strip()))
    filled = (list(islice(block, _MOST_LINES + 1)) for words, block in blocks if words)
    sentences = list(islice(map(_sentence, filled), limit))
    if not sentences:
        raise InputError(f"{path} contains no sentences. Pass a CoNLL-U file.")
    return sentences


def _sentence(lines: list[tuple[str, str]]) -> TaggedText:
    texts = [line.removeprefix(_COMMENT) for _, line in lines if line.startswith(_COMMENT)]
    if len(texts) != 1 or len(lines) > _MOST_LINES:
        raise InputError(
            f"{lines[0][0]}: the sentence has {len(texts) or 'no'} '# text = ' comments in {len(lines):,} lines; "
            f"expected one, in at most {_MOST_LINES:,}, so that words can be placed. Put a blank line after every "
            "sentence."
        )
    rows = []
    for position, line in lines:
        row = line.split("\t")
        if line.startswith("#"):
            continue
        if len(row) != 10:
            raise InputError(f"{position}: expected 10 columns, got {len(row)}.")
        if re.fullmatch(r"\d{1,6}([-.]\d{1,6})?", row[0]) is None:
            raise InputError(
                f"{position}: expected a word's number such as 3, 3-4 or 3.1; got {row[0]!r}."
            )
        if "." not in row[0]:
            rows.append((position, row))
    placed = list(_placed(texts[0], rows))
    places = {number: place for place, (_, numbers, _) in enumerate(placed) for number in numbers}
    words = tuple(replace(word, head=places.get(head)) for word, _, head in placed)
    left = texts[0][words[-1].end if words else 0 :].strip()
    if left:
        raise InputError(f"{lines[-1][0]}: the sentence's text goes on after its words: {left:.60}")
    return TaggedText(texts[0], words)


def _placed(
    text: str, rows: list[tuple[str, list[str]]]
) -> Iterator[tuple[Word, Sequence[str], str]]:
    """Yield each word, the numbers that it has in the file, and the number of its head."""
    end = index = 0
    while index < len(rows):
        position, row = rows[index]
        number, form = row[:2]
        start = text.find(form, end)
        if start < 0 or text[end:start].strip() or not form:
            raise InputError(
                f"{position}: the word {form!r} is not the next word of the sentence's text."
            )
        end = start + len(form)
        first, is_range, last = number.partition("-")
        index += 1
        parts = [row]
        if is_range:
            numbers = range(int(first), int(last) + 1)
            parts = [part for _, part in rows[index : index + len(numbers)]]
            index += len(parts)
            if not parts or [part[0] for part in parts] != [*map(str, numbers)]:
                raise InputError(f"{position}: the words {number} do not follow it, one by one.")
        written = [[part[0]] for part in parts]
        if "".join(part[1] for part in parts) != form:
            written = [[part[0] for part in parts]]
            parts = [[number, form, *part[2:]] for part in parts[:1]]
        for own, part in zip(written, parts, strict=True):
            word = Word(start, start + len(part[1]), xpos=part[4], upos=part[3], relation=part[7])
            yield word, own, part[6]
            start += len(part[1])
