"""Tagged sentences from CoNLL-U files: words placed in the text by character offsets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from identilens.errors import InputError
from identilens.runs.compressed import open_file

Tags = Literal["xpos", "upos"]
"""The treebank's own tags (Penn tags for English), or universal ones."""

Span = tuple[int, int, str]
"""(start, end, tag): characters start to end - 1 of a text belong to a word with that tag."""


@dataclass(frozen=True)
class Word:
    """A word of a text.

    Attributes:
        start: Its first character.
        end: The character behind its last.
        xpos: The treebank's own tag.
        upos: The universal tag.
    """

    start: int
    end: int
    xpos: str
    upos: str


class TaggedText(str):
    """A text that carries its words with their tags, and is read as a text everywhere.

    Args:
        text: As it was written.
        words: Its words in order.
    """

    words: tuple[Word, ...]

    def __new__(cls, text: str, words: Iterable[Word] = ()) -> "TaggedText":
        """Return the text with its words."""
        made = super().__new__(cls, text)
        made.words = tuple(words)
        return made

    def spans(self, tags: Tags = "xpos") -> list[Span]:
        """Return the characters of each word with its tag of one kind."""
        return [(word.start, word.end, getattr(word, tags)) for word in self.words]


@dataclass(frozen=True)
class _Row:
    """What a line of the file says: a word, or a range of words that are written as one."""

    name: str
    form: str
    upos: str
    xpos: str
    line: int

    def word(self, start: int, end: int) -> Word:
        return Word(start, end, self.xpos, self.upos)


def read_conllu(path: str | Path, limit: int | None = None) -> list[TaggedText]:
    """Return the sentences of a CoNLL-U file as texts that carry their words with both kinds of tags.

    A sentence's text is its ``# text`` comment. Words written as one (``cannot``) are split where their forms
    spell it, else the whole takes the tags of its first word. Words that are not written (``8.1``) have no place.

    Args:
        path: The file; behind .gz or .xz as well.
        limit: Sentences to read; all when not given.

    Raises:
        InputError: For a missing file, a sentence without text, a malformed line or a word not found in its text,
            naming the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no such file: {path}. Pass a CoNLL-U file (.conllu, also behind .gz or .xz).")
    found: list[TaggedText] = []
    with open_file(path, encoding="utf-8") as stream:
        for number, lines in _blocks(stream):
            if limit is not None and len(found) == limit:
                break
            found.append(_sentence(lines, path, number))
    if not found:
        raise InputError(f"{path} holds no sentences. Pass a CoNLL-U file.")
    return found


def _blocks(stream: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each sentence's lines with the number of the first."""
    lines: list[str] = []
    start = 1
    for number, line in enumerate(stream, 1):
        if line.strip():
            if not lines:
                start = number
            lines.append(line.rstrip("\n"))
        elif lines:
            yield start, lines
            lines = []
    if lines:
        yield start, lines


def _sentence(lines: list[str], path: Path, number: int) -> TaggedText:
    text = next((line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")), None)
    if text is None:
        raise InputError(f"{path}, line {number}: the sentence has no '# text = ' comment, so words cannot be placed.")
    return TaggedText(text, _placed(text, list(_rows(lines, path, number)), path))


def _rows(lines: list[str], path: Path, number: int) -> Iterator[_Row]:
    for place, line in enumerate(lines, number):
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 10:
            raise InputError(f"{path}, line {place}: expected 10 columns, got {len(fields)}.")
        if "." not in fields[0]:
            yield _Row(fields[0], fields[1], upos=fields[3], xpos=fields[4], line=place)


def _placed(text: str, rows: Sequence[_Row], path: Path) -> Iterator[Word]:
    position = index = 0
    while index < len(rows):
        row = rows[index]
        start = text.find(row.form, position)
        if start < 0 or text[position:start].strip():
            raise InputError(
                f"{path}, line {row.line}: the word {row.form!r} does not come next in the sentence's text."
            )
        position = start + len(row.form)
        index += 1
        if "-" not in row.name:
            yield row.word(start, position)
            continue
        first, last = (int(part) for part in row.name.split("-"))
        parts = rows[index : index + 1 + last - first]
        index += len(parts)
        yield from _split(row.form, start, parts)


def _split(form: str, start: int, parts: Sequence[_Row]) -> Iterator[Word]:
    """Yield words that are written as one."""
    if "".join(part.form for part in parts) != form:
        yield parts[0].word(start, start + len(form))
        return
    for part in parts:
        yield part.word(start, start + len(part.form))
        start += len(part.form)
