"""Sentences of a treebank from CoNLL-U files: words with tags and heads, placed in the text by character offsets."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import conllu
from conllu.exceptions import ParseException
from conllu.parser import parse_sentences

from identilens.errors import InputError
from identilens.runs.lines import Limit, read_lines
from identilens.runs.settings import coerce

Tags = Literal["xpos", "upos"]
"""The treebank's own tags (Penn tags for English), or universal ones."""

Span = tuple[int, int, str]
"""(start, end, tag): characters start to end - 1 of a text belong to a word with that tag."""


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


def read_conllu(path: str | Path, limit: int | None = None) -> list[TaggedText]:
    """Return the sentences of a CoNLL-U file (also .gz or .xz) as texts with their words: both tags, head and relation.

    A sentence's text is its ``# text`` comment. Words written as one (``cannot``) are split if their forms spell it;
    otherwise the whole word gets the tags of its first part. Words that are not written (``8.1``) are skipped.

    Raises:
        InputError: For a missing file, a sentence without text, a malformed line, a word not found in its text, or
            words that are missing, naming the sentence by its number.

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
    lines: Any = (line for _, line in read_lines(Path(path)))
    blocks = islice(parse_sentences(lines), coerce("limit", Limit, limit))
    sentences = []
    for number, block in enumerate(blocks, 1):
        try:
            [sentence] = conllu.parse(block)
            text = sentence.metadata["text"]
            sentences.append(TaggedText(text, _words(text, sentence)))
        except (ParseException, LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}, sentence {number} cannot be read: {error!r}. Correct it, or leave it out; every sentence "
                "needs its # text, and a blank line after it."
            ) from error
    if not sentences:
        raise InputError(f"{path} contains no sentences. Pass a CoNLL-U file.")
    return sentences


def _words(text: str, sentence: Iterable[conllu.Token]) -> list[Word]:
    """Return the words of a sentence, where they stand in its text; raises ValueError if one is not the next there."""
    written: list[tuple[str, list[conllu.Token]]] = []
    last = 0
    for row in sentence:
        number = row["id"]
        if isinstance(number, int):
            if number > last:
                written.append((row["form"], []))
            written[-1][1].append(row)
        elif "-" in number:
            written.append((row["form"], []))
            last = number[2]
    numbers: dict[int | None, int] = {}
    words: list[Word] = []
    end = 0
    for form, parts in written:
        start = text.find(form, end)
        if start < 0 or text[end:start].strip() or not form:
            raise ValueError(f"{form!r} is not the next word of its text")
        end = start + len(form)
        # Parts that do not spell the word are one, with the tags of the first.
        spelled = "".join(part["form"] for part in parts) == form
        first = parts[0]
        for part in parts:
            if spelled or part is first:
                stop = start + len(part["form"]) if spelled else end
                tag = part["xpos"] or "_"
                words.append(Word(start, stop, tag, part["upos"], part["head"], part["deprel"]))
                start = stop
            numbers[part["id"]] = len(words) - 1
    if text[end:].strip():
        raise ValueError(f"its text goes on after its words: {text[end:].strip():.60}")
    return [replace(word, head=numbers.get(word.head)) for word in words]
