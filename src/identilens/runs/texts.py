"""Texts from files, streams and data sets, read one after the other; each is a line, an object or a row."""

import codecs
import csv
import json
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from identilens.errors import InputError, SettingError
from identilens.runs.columns import column_texts, is_columns, parquet_rows
from identilens.runs.compressed import MAX_TEXT_BYTES, READ_ERRORS, STANDARD_INPUT, kind_of, open_bytes, open_text
from identilens.runs.conllu import read_conllu
from identilens.runs.corpus import Corpus, TextList, stored
from identilens.runs.lines import Lines, checked

Texts = Iterator[Any]

_TOLD_EVERY = 10_000


def read_texts(
    source: Any, *, columns: Sequence[str] = (), encoding: str = "utf-8", pairs: bool = False,
    limit: int | None = None, max_length: int | None = None, max_text_bytes: int = MAX_TEXT_BYTES,
    told: Callable[[int], None] | None = None,
) -> Sequence[Any]:  # fmt: skip
    """Return the texts of a file or a data set, or those of a list; see `iter_texts`.

    Up to 10,000 texts are returned as a list; more are stored in a temporary file (`Corpus`) and read when they are
    used. ``told`` is called after every 10,000 texts with the number of texts read.

    Raises:
        InputError: As `iter_texts`, and if there are no texts.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp()) / "texts.jsonl"
        >>> _ = file.write_text('{"body": "Snow fell."}' + chr(10) + '{"body": "Nobody came."}')
        >>> idl.read_texts(file, columns=["body"])
        ['Snow fell.', 'Nobody came.']
    """
    given = {"columns": columns, "encoding": encoding, "pairs": pairs, "limit": limit, "max_length": max_length}
    texts = iter_texts(source, **given, max_text_bytes=max_text_bytes)
    read = stored(texts if told is None else _counted(texts, told))
    if not isinstance(source, str | Path):
        return read
    if not read:
        raise InputError(f"{source} contains no texts.")
    named = read if isinstance(read, Corpus) else TextList(read)
    named.asked = {
        "file": Path(source), "column": tuple(columns), "encoding": encoding, "pairs": pairs, "limit": limit,
        "max_text_bytes": max_text_bytes,
    }  # fmt: skip
    return named


def iter_texts(
    source: Any, *, columns: Sequence[str] = (), encoding: str = "utf-8", pairs: bool = False,
    limit: int | None = None, max_length: int | None = None, max_text_bytes: int = MAX_TEXT_BYTES,
) -> Texts:  # fmt: skip
    """Yield texts one by one; pairs if two columns are named, or if ``pairs`` is set.

    A file is .txt (one text per line, blank lines skipped), .jsonl, .csv, .tsv, .conllu or .parquet, the first five
    optionally compressed as .gz or .xz. A pipe, or ``-`` for the standard input, has one text per line, or one object
    per line if columns are named. Other sources: a data set (`datasets`, also streaming), a frame or a column (pandas,
    polars), any iterable. Pairs are every two texts of a list, tab-separated lines of a .txt file, or two columns.

    Args:
        source: File, stream, data set, frame or iterable with the texts.
        columns: Columns with the texts.
        encoding: Encoding of a file.
        pairs: Whether the texts are pairs.
        limit: Maximum number of texts.
        max_length: Number of tokens to which texts are cut later; the rest of a very long text is not stored.
        max_text_bytes: Maximum size of a file after decompression.

    Raises:
        InputError: For a missing or unreadable file, a wrong encoding, a missing column, an empty text, a text that is
            too long, more bytes than allowed, or a line that is not a pair although pairs are expected. The message
            names the line.
    """
    if limit is not None and limit < 0:
        raise SettingError("limit", "of at least 0", limit)
    if isinstance(source, str | Path):
        return islice(_of_file(Path(source), columns, encoding, pairs, limit, max_length, max_text_bytes), limit)
    if not (is_columns(source) or isinstance(source, Iterable)):
        raise InputError(f"expected a file, a data set or texts; got {type(source).__name__}.")
    if is_columns(source):
        return islice((checked(row, place, max_length) for place, row in column_texts(source, columns)), limit)
    return islice(_in_twos(source) if pairs else iter(source), limit)


def _counted(texts: Texts, told: Callable[[int], None]) -> Texts:
    for count, text in enumerate(texts, 1):
        if count % _TOLD_EVERY == 0:
            told(count)
        yield text


def _of_file(
    file: Path, columns: Sequence[str], encoding: str, pairs: bool, limit: int | None, max_length: int | None, most: int
) -> Texts:
    stream = _is_stream(file)
    kind = kind_of(file) or (".jsonl" if columns else ".txt") if stream else kind_of(file)
    if kind == ".conllu":
        if pairs or columns:
            raise InputError(f"{file} has one sentence for each text: omit --pairs and --column.")
        with _translated_read_errors(file, "utf-8", stream, most):
            yield from read_conllu(file, limit=limit, max_text_bytes=most)
        return
    read = _reader(file, kind, columns, pairs)
    if kind == ".parquet":
        yield from (checked(row, place, max_length) for place, row in parquet_rows(file, columns, most))
        return
    with _translated_read_errors(file, encoding, stream, most), open_text(file, encoding, "", most) as opened:
        yield from read(Lines(opened, file, max_length if kind == ".txt" else None), file, list(columns), max_length)


def _is_stream(file: Path) -> bool:
    """Return whether a file can be read only once; raises InputError if it cannot be read."""
    if file == STANDARD_INPUT:
        return True
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        raise InputError(f"no such file: {file}. Check the path given to --file.") from None
    if stat.S_ISFIFO(mode):
        return True
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device"
        raise InputError(f"{file} is {what}; expected a file with texts, or - for the standard input.")
    return False


def _reader(file: Path, kind: str, columns: Sequence[str], pairs: bool) -> Callable[..., Texts]:
    readers = {
        ".txt": _pairs_of_lines if pairs else _lines, ".jsonl": _json_lines, ".csv": _rows, ".tsv": _rows,
        ".parquet": _rows,
    }  # fmt: skip
    if kind not in readers:
        known = ", ".join(readers)
        raise InputError(f"{file} ends in {kind or 'nothing'}; expected {known}, .conllu (or with .gz, .xz).")
    if kind == ".txt" and columns:
        raise InputError(f"--column is for .jsonl, .csv, .tsv and .parquet files; {file} has one text per line.")
    if kind != ".txt" and not 1 <= len(columns) <= 2:
        raise InputError(f"{file} needs --column NAME for its texts, or two of them for pairs; got {len(columns)}.")
    if pairs and kind != ".txt" and len(columns) != 2:
        raise InputError(f"--pairs needs --column twice, once for each sentence of a pair; got only {columns[0]!r}.")
    return readers[kind]


@contextmanager
def _translated_read_errors(file: Path, encoding: str, stream: bool, most: int) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        place = str(error.reason) if stream else _undecodable(file, encoding, most)
        raise InputError(
            f"{file} is not {encoding}: {place}. "
            "Save it as UTF-8, or name its encoding with --encoding (for example latin-1)."
        ) from error
    except LookupError as error:
        raise InputError(f"unknown encoding {encoding!r}; try utf-8, utf-16 or latin-1.") from error
    except READ_ERRORS as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def _undecodable(file: Path, encoding: str, most: int) -> str:
    """Return which byte of a file cannot be decoded; the stream itself only knows its position in a buffer."""
    if encoding.lower().startswith(("utf-16", "utf-32", "utf_16", "utf_32")):
        return "its content cannot be decoded"
    decoder = codecs.getincrementaldecoder(encoding)()
    position, number = 0, 1
    with open_bytes(file, most) as stream:
        for part in chain(iter(lambda: stream.read(2**20), b""), [b""]):
            try:
                decoder.decode(part, final=not part)
            except UnicodeDecodeError as error:
                position += len(part) - len(error.object) + error.start
                number += error.object[: error.start].count(b"\n")
                return f"byte {error.object[error.start]:#04x} at position {position} (line {number})"
            position += len(part)
            number += part.count(b"\n")
    return "its content cannot be decoded"


def _lines(lines: Lines, file: Path, columns: list[str], longest: int | None) -> Texts:
    return (checked(line, f"{file}, line {number}", longest) for number, line in lines.filled())


def _pairs_of_lines(lines: Lines, file: Path, columns: list[str], longest: int | None) -> Texts:
    for number, line in lines.filled():
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) != 2 or not all(parts):
            raise InputError(
                f"{file}, line {number}: --pairs expects two sentences with a tab between; got {len(parts)} "
                f"{'part' if len(parts) == 1 else 'parts'}. Omit --pairs if each line is one text."
            )
        yield checked((parts[0], parts[1]), f"{file}, line {number}", longest)


def _in_twos(texts: Iterable[Any]) -> Texts:
    sentences = list(texts)
    if len(sentences) % 2:
        raise InputError(f"--pairs reads every two --text as a pair; got {len(sentences)}. Give one more, or one less.")
    return zip(sentences[::2], sentences[1::2], strict=True)


def _json_lines(lines: Lines, file: Path, columns: list[str], longest: int | None) -> Texts:
    for number, line in lines.filled():
        place = f"{file}, line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: not valid JSON ({error}).") from error
        if not isinstance(row, dict):
            raise InputError(f"{place}: expected a JSON object, got {type(row).__name__}.")
        yield checked(_pick(row, columns, place), place, longest)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raises ValueError for a name that it has twice, where `json` would take the last."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {repeated!r} stands there twice; remove one")
    return row


def _rows(lines: Lines, file: Path, columns: list[str], longest: int | None) -> Texts:
    tabs = kind_of(file) == ".tsv"
    # Tab-separated corpora are written without quoting.
    quoting, separator = (csv.QUOTE_NONE, "\t") if tabs else (csv.QUOTE_MINIMAL, ",")
    remedy = "Remove the tabs in its texts" if tabs else "Put texts with commas or line ends between quotes"
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    header: list[str] = []
    start = 1
    try:
        for fields in reader:
            place = f"{file}, line {start}"
            start = reader.line_num + 1
            if not header:
                header = fields
                _check_header(header, columns, place)
            elif fields:
                if len(fields) != len(header):
                    counts = f"expected {len(header)} fields, as in the header; got {len(fields)}"
                    raise InputError(f"{place}: {counts}. {remedy}.")
                yield checked(_pick(dict(zip(header, fields, strict=True)), columns, place), place, longest)
    except csv.Error as error:
        raise InputError(
            f"{file}, line {start}: {error}. Close every quote, and double those inside a text."
        ) from error


def _check_header(header: list[str], columns: list[str], place: str) -> None:
    for column in columns:
        if header.count(column) > 1:
            raise InputError(f"{place}: the header has the column {column!r} twice. Rename one of them.")


def _pick(row: Mapping[str, Any], columns: Sequence[str], place: str) -> str | tuple[str, str]:
    values = []
    for column in columns:
        if column not in row:
            known = ", ".join(str(name) for name in row)
            raise InputError(f"{place}: no column {column!r}; there are {known}. Pass one with --column.")
        value = row[column]
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{place}: column {column!r} is empty or not a text. Remove the line.")
        values.append(value)
    return values[0] if len(values) == 1 else (values[0], values[1])
