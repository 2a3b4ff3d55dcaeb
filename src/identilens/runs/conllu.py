"""Sentences of a treebank from CoNLL-U files: words with tags and heads, placed in the text by character offsets."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Literal

import conllu
import conllu.exceptions

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
            text, or words that are missing, naming the sentence's first line.

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
    lines = read_lines(Path(path), most=max_text_bytes)
    blocks = groupby(lines, lambda line: bool(line[1].strip()))
    filled = (list(islice(block, _MOST_LINES + 1)) for words, block in blocks if words)
    sentences = list(islice(map(_sentence, filled), limit))
    if not sentences:
        raise InputError(f"{path} contains no sentences. Pass a CoNLL-U file.")
    return sentences


def _sentence(lines: list[tuple[str, str]]) -> TaggedText:
    """Return a sentence from its lines with their positions."""
    texts = [line for _, line in lines if line.startswith(_COMMENT)]
    if len(texts) != 1 or len(lines) > _MOST_LINES:
        raise InputError(
            f"{lines[0][0]}: the sentence has {len(texts) or 'no'} '{_COMMENT}' comments in {len(lines):,} lines; "
            f"expected one, in at most {_MOST_LINES:,}, so that words can be placed. Put a blank line after every "
            "sentence."
        )
    text = texts[0].removeprefix(_COMMENT).rstrip("\r\n")
    try:
        (read,) = conllu.parse("".join(line for _, line in lines))
        return TaggedText(text, _words(text, read))
    except (conllu.exceptions.ParseException, LookupError, TypeError, ValueError) as error:
        why = str(error)
        if isinstance(error, KeyError):
            why = f"a line has no column {error.args[0]}"
        raise InputError(
            f"{lines[0][0]}: the sentence cannot be read: {why.rstrip('.')}. Correct it, or leave it out."
        ) from error


def _words(text: str, read: Iterable[conllu.Token]) -> list[Word]:
    """Return the words of a sentence in their places.

    Raises:
        ValueError: For a word that is not the next one of the text, and for words that are missing.
    """
    rows = [row for row in read if isinstance(row["id"], int) or "-" in row["id"]]
    numbers: dict[int | None, int] = {}
    words: list[Word] = []
    heads: list[int | None] = []
    end = index = 0
    while index < len(rows):
        row = rows[index]
        start = text.find(row["form"], end)
        if start < 0 or text[end:start].strip() or not row["form"]:
            raise ValueError(f"{row['form']!r} is not the next word of its text")
        end = start + len(row["form"])
        index += 1
        parts = [row]
        if not isinstance(row["id"], int):
            first, _, last = row["id"]
            parts = rows[index : index + last - first + 1]
            index += len(parts)
            follow = [part["id"] for part in parts] == [*range(first, first + len(parts))]
            if not follow or len(parts) != last - first + 1:
                raise ValueError(f"the words {first}-{last} do not follow it, one by one")
        spelled = "".join(part["form"] for part in parts) == row["form"]
        # Parts that do not spell the word are one, with the tags of the first.
        for number, part in enumerate(parts):
            if spelled or number == 0:
                stop = start + len(part["form"]) if spelled else end
                tag = part["xpos"] or "_"
                words.append(Word(start, stop, tag, part["upos"], None, part["deprel"]))
                heads.append(part["head"])
                start = stop
            numbers[part["id"]] = len(words) - 1
    left = text[end:].strip()
    if left:
        raise ValueError(f"its text goes on after its words: {left:.60}")
    return [replace(word, head=numbers.get(head)) for word, head in zip(words, heads, strict=True)]
