"""Tagged sentences from CoNLL-U files: words placed in the text by character offsets."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from identilens.errors import InputError
from identilens.runs.compressed import open_file

Span = tuple[int, int, str]
"""(start, end, tag): characters start to end - 1 of a text belong to a word with that tag."""

_COLUMN = {"upos": 3, "xpos": 4}


@dataclass(frozen=True)
class TaggedText:
    """A text with its words' tags.

    Attributes:
        text: As it was written.
        spans: Its words in order.
    """

    text: str
    spans: tuple[Span, ...]


def read_conllu(path: str | Path, tags: Literal["xpos", "upos"] = "xpos", limit: int | None = None) -> list[TaggedText]:
    """Return the sentences of a CoNLL-U file with the characters that each tag covers.

    A sentence's text is its ``# text`` comment. Words written as one (``cannot``) are split where their forms
    spell it, else the whole takes the tag of its first word. Words that are not written (``8.1``) have no place.

    Args:
        path: The file; behind .gz or .xz as well.
        tags: ``xpos``, the treebank's own tags (Penn tags for English), or ``upos``, the universal ones.
        limit: Sentences to read; all when not given.

    Raises:
        InputError: For a missing file, a sentence without text, a malformed line or a word not found in its text,
            naming the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no such file: {path}. Pass a CoNLL-U file (.conllu, also behind .gz or .xz).")
    if tags not in _COLUMN:
        raise InputError(f"tags must be xpos or upos; got {tags!r}.")
    found: list[TaggedText] = []
    with open_file(path, encoding="utf-8") as stream:
        for number, lines in _blocks(stream):
            if limit is not None and len(found) == limit:
                break
            found.append(_sentence(lines, _COLUMN[tags], path, number))
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


def _sentence(lines: list[str], column: int, path: Path, number: int) -> TaggedText:
    text = next((line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")), None)
    if text is None:
        raise InputError(f"{path}, line {number}: the sentence has no '# text = ' comment, so words cannot be placed.")
    rows = []
    for offset, line in enumerate(lines):
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 10:
            raise InputError(f"{path}, line {number + offset}: expected 10 columns, got {len(fields)}.")
        if "." not in fields[0]:
            rows.append((fields[0], fields[1], fields[column], number + offset))
    spans: list[Span] = []
    position = index = 0
    while index < len(rows):
        name, form, tag, line = rows[index]
        start = text.find(form, position)
        if start < 0 or text[position:start].strip():
            raise InputError(f"{path}, line {line}: the word {form!r} does not come next in the sentence's text.")
        position = start + len(form)
        if "-" not in name:
            spans.append((start, position, tag))
            index += 1
            continue
        first, last = (int(part) for part in name.split("-"))
        words = [(word, tag) for _, word, tag, _ in rows[index + 1 : index + 2 + last - first]]
        spans += _split(form, start, words)
        index += 1 + len(words)
    return TaggedText(text, tuple(spans))


def _split(form: str, start: int, words: list[tuple[str, str]]) -> list[Span]:
    """Return the spans of words that are written as one."""
    if "".join(word for word, _ in words) != form:
        return [(start, start + len(form), words[0][1])]
    spans = []
    for word, tag in words:
        spans.append((start, start + len(word), tag))
        start += len(word)
    return spans
