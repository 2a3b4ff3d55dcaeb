"""Texts from files: a line, an object or a row each."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from identilens.errors import InputError
from identilens.runs.compressed import READ_ERRORS, kind_of, open_file
from identilens.runs.conllu import read_conllu


def read_texts(
    source: str | Path | Sequence[str], *, columns: Sequence[str] = (), encoding: str = "utf-8", pairs: bool = False,
    limit: int | None = None,
) -> list[Any]:  # fmt: skip
    """Return the texts of a file, or those of a list; pairs when two columns are named, or asked for.

    A file is .txt (one text a line, blank lines skipped), .jsonl, .csv, .tsv or .conllu, also behind .gz or .xz.
    Pairs are every two of a list, lines with a tab in a .txt file, or two columns.

    Raises:
        InputError: For a missing or unreadable file, a wrong encoding, a missing column, an empty text, or what is
            no pair where pairs are meant, naming the line.
    """
    if not isinstance(source, str | Path):
        return (_in_twos(list(source)) if pairs else list(source))[:limit]
    file = Path(source)
    if not file.is_file():
        raise InputError(f"no such file: {file}. Check the path given to --file.")
    kind = kind_of(file)
    if kind == ".conllu":
        if pairs or columns:
            raise InputError(f"{file} has one sentence for each text: leave out --pairs and --column.")
        with _translated_read_errors(file, "utf-8"):
            return [*read_conllu(file, limit=limit)]
    read = _reader(file, kind, columns, pairs)
    with _translated_read_errors(file, encoding), open_file(file, "rt", encoding=encoding, newline="") as stream:
        found = list(islice(read(stream, file, list(columns)), limit))
    if not found:
        raise InputError(f"{file} holds no texts.")
    return found


def _reader(file: Path, kind: str, columns: Sequence[str], pairs: bool) -> Callable[..., Iterator[Any]]:
    readers = {".txt": _pairs_of_lines if pairs else _lines, ".jsonl": _json_lines, ".csv": _rows, ".tsv": _rows}
    if kind not in readers:
        known = ", ".join(readers)
        raise InputError(f"{file} ends in {kind or 'nothing'}; expected {known}, .conllu (or with .gz, .xz).")
    if kind == ".txt" and columns:
        raise InputError(f"--column is for .jsonl, .csv and .tsv files; {file} has one text a line.")
    if kind != ".txt" and not 1 <= len(columns) <= 2:
        raise InputError(f"{file} needs --column NAME for its texts, or two of them for pairs; got {len(columns)}.")
    if pairs and kind != ".txt" and len(columns) != 2:
        raise InputError(f"--pairs needs --column twice, once for each sentence of a pair; got only {columns[0]!r}.")
    return readers[kind]


@contextmanager
def _translated_read_errors(file: Path, encoding: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not {encoding}: {_undecodable(file, encoding)}. "
            "Save it as UTF-8, or name its encoding with --encoding (for example latin-1)."
        ) from error
    except LookupError as error:
        raise InputError(f"unknown encoding {encoding!r}; try utf-8, utf-16 or latin-1.") from error
    except READ_ERRORS as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def _undecodable(file: Path, encoding: str) -> str:
    """Return which byte of a file cannot be decoded; the stream itself only knows its place in a buffer."""
    with open_file(file, "rb") as stream:
        content = stream.read()
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        return f"byte {content[error.start]:#04x} at position {error.start}"
    return "a character is cut short"


def _held(stream: Iterable[str]) -> Iterator[tuple[int, str]]:
    return ((number, line.strip()) for number, line in enumerate(stream, 1) if line.strip())


def _lines(stream: Iterable[str], file: Path, columns: list[str]) -> Iterator[str]:
    return (line for _, line in _held(stream))


def _pairs_of_lines(stream: Iterable[str], file: Path, columns: list[str]) -> Iterator[tuple[str, str]]:
    for number, line in _held(stream):
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) != 2 or not all(parts):
            raise InputError(
                f"{file}, line {number}: --pairs expects two sentences with a tab between; got {len(parts)} "
                f"{'part' if len(parts) == 1 else 'parts'}. Leave --pairs out where each line is one text."
            )
        yield parts[0], parts[1]


def _in_twos(texts: list[str]) -> list[tuple[str, str]]:
    if len(texts) % 2:
        raise InputError(f"--pairs takes every two --text as a pair; got {len(texts)}. Give one more, or one less.")
    return list(zip(texts[::2], texts[1::2], strict=True))


def _json_lines(stream: Iterable[str], file: Path, columns: list[str]) -> Iterator[Any]:
    for number, line in _held(stream):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{file}, line {number}: not valid JSON ({error}).") from error
        if not isinstance(row, dict):
            raise InputError(f"{file}, line {number}: expected a JSON object, got {type(row).__name__}.")
        yield _pick(row, columns, file, number)


def _rows(stream: Iterable[str], file: Path, columns: list[str]) -> Iterator[Any]:
    # Tab-separated corpora are written without quoting.
    tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind_of(file) == ".tsv" else {}
    reader = csv.DictReader(stream, **tabs)
    try:
        for row in reader:
            yield _pick(row, columns, file, reader.line_num)
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}: {error}.") from error


def _pick(row: dict[str, Any], columns: list[str], file: Path, number: int) -> str | tuple[str, str]:
    values = []
    for column in columns:
        if column not in row:
            known = ", ".join(str(name) for name in row)
            raise InputError(f"{file}, line {number}: no column {column!r}; there are {known}. Pass one with --column.")
        value = row[column]
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{file}, line {number}: column {column!r} is empty or not a text. Remove the line.")
        values.append(value)
    return values[0] if len(values) == 1 else (values[0], values[1])
