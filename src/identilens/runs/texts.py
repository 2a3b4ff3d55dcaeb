"""Texts from files, data sets and iterables."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from identilens.errors import InputError, first_line
from identilens.runs.conllu import read_conllu
from identilens.runs.lines import Limit, kind_of, read_lines
from identilens.runs.settings import Names, coerce

_TABLES = {".parquet": pl.scan_parquet, ".arrow": pl.scan_ipc}
"""Kinds of files that polars scans."""

# Tab-separated corpora are written without quoting.
_SEPARATED: dict[str, dict[str, Any]] = {
    ".csv": {"strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
"""How the fields of a line are separated."""

_NAMED = (".jsonl", *_SEPARATED, *_TABLES)
"""Kinds of files whose columns have names."""

Rows = Iterator[tuple[str, Mapping[Any, Any]]]
"""The position of a row, for messages, and its values by column."""


class Texts(list[Any]):
    """Texts, or pairs of texts, that were read from a file.

    Attributes:
        load_options: The options from which they were read.
    """

    load_options: Mapping[str, Any]


def read_texts(
    source: Any,
    *,
    columns: Sequence[str] = (),
    encoding: str = "utf-8",
    limit: int | None = None,
) -> list[Any]:
    """Return the texts of a file, a data set or a list; pairs if two columns are named.

    A file is .txt (one text per line, blank lines skipped), .jsonl, .csv, .tsv, .parquet or .arrow, the first four
    optionally compressed as .gz or .xz, or a treebank (.conllu). A pipe, or ``-`` for the standard input, has one text
    per line, or one object per line if columns are named. Other sources: any iterable of texts, or of rows by column,
    such as a data set (`datasets`, also streaming).

    Args:
        source: File, data set or iterable with the texts.
        columns: Column with the texts, or the two of pairs; of rows in Python ``text`` by default.
        encoding: Encoding of a file.
        limit: Maximum number of texts.

    Raises:
        InputError: For a missing or unreadable file, one without texts, a wrong encoding, a missing column, an empty
            text, or a line that is not a pair although pairs are expected. The message names the line.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp()) / "texts.jsonl"
        >>> _ = file.write_text('{"body": "Snow fell."}' + chr(10) + '{"body": "Nobody came."}')
        >>> idl.read_texts(file, columns=["body"])
        ['Snow fell.', 'Nobody came.']
    """
    columns = coerce("columns", Names, columns)
    limit = coerce("limit", Limit, limit)
    if isinstance(source, str | Path):
        file = Path(source)
        if kind_of(file) == ".conllu":
            texts: Iterable[Any] = read_conllu(file, limit)
        else:
            texts = _texts(_file_rows(file, columns, encoding, limit), columns)
        read = Texts(islice(texts, limit))
        if not read:
            raise InputError(f"{source} contains no texts.")
        read.load_options = {"file": file, "column": columns, "encoding": encoding, "limit": limit}
        return read
    other = hasattr(type(source), "columns") or isinstance(source, Mapping | bytes)
    if other or not isinstance(source, Iterable):
        raise InputError(
            f"expected a file, a data set or a list of texts; got {type(source).__name__}."
        )
    return list(islice(_given(source, columns or ["text"]), limit))


def _given(source: Iterable[Any], columns: Sequence[str]) -> Iterator[Any]:
    """Yield texts as they are given, and of rows by column, as data sets have them, those of some columns."""
    for number, text in enumerate(source):
        if isinstance(text, Mapping):
            yield from _texts(iter([(f"row {number}", text)]), columns)
        else:
            yield text


def _texts(rows: Rows, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the text in a column of each row, or the pair in two."""
    for position, row in rows:
        texts = []
        for column in columns or row:
            text = row.get(column)
            if not isinstance(text, str) or not text.strip():
                where = f"column {column!r}" if columns else "the text"
                raise InputError(
                    f"{position}: {where} is missing, empty or not a text. Remove the row, or pass another "
                    f"columns=...; there are {', '.join(map(str, row))}."
                )
            texts.append(text)
        yield texts[0] if len(texts) == 1 else tuple(texts)


def _file_rows(file: Path, columns: Sequence[str], encoding: str, limit: int | None) -> Rows:
    kind = kind_of(file) or (".jsonl" if columns else ".txt")
    if kind not in (".txt", *_NAMED):
        raise InputError(
            f"{file} ends in {kind}; expected .txt, {', '.join(_NAMED)}, .conllu (or with .gz, .xz)."
        )
    if len(columns) not in ((1, 2) if kind in _NAMED else (0,)):
        raise InputError(
            f"{', '.join(_NAMED)} files need columns=...: one, or two for pairs; a .txt file has none. "
            f"Got {len(columns)} for {file}."
        )
    if kind in _TABLES:
        return _table_rows(file, columns, limit)
    lines = read_lines(file, encoding)
    if kind in _SEPARATED:
        return _separated_rows(lines, file, kind)
    filled = ((position, line.strip()) for position, line in lines if line.strip())
    if kind == ".txt":
        return ((position, {0: line}) for position, line in filled)
    return _json_rows(filled)


def _json_rows(lines: Iterable[tuple[str, str]]) -> Rows:
    for position, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{position}: not valid JSON ({error}).") from error
        if not isinstance(row, dict):
            raise InputError(f"{position}: expected a JSON object, got {type(row).__name__}.")
        yield position, row


def _separated_rows(lines: Iterable[tuple[str, str]], file: Path, kind: str) -> Rows:
    reader = csv.DictReader((line for _, line in lines), **_SEPARATED[kind])
    try:
        for row in reader:
            position = f"{file}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(
                    f"{position}: expected {len(reader.fieldnames or ())} fields, as in the header. Put texts with "
                    "commas or line ends between quotes; a .tsv has neither tabs nor line ends in its texts."
                )
            yield position, row
    except csv.Error as error:
        raise InputError(
            f"{file}, line {reader.line_num}: {error}. Close every quote, double those inside a text, and put longer "
            "texts into a .jsonl file."
        ) from error


def _table_rows(file: Path, columns: Sequence[str], limit: int | None) -> Rows:
    try:
        lazy = _TABLES[kind_of(file)](file, glob=False, n_rows=limit)
        names = list(lazy.collect_schema())
        if not {*columns} <= {*names}:
            raise InputError(
                f"{file} lacks {', '.join(columns)}; there are {', '.join(names)}. Pass another columns=...."
            )
        # Polars takes some names for patterns.
        frame = lazy.select(pl.nth(*map(names.index, columns))).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    for number, row in enumerate(frame.iter_rows(named=True)):
        yield f"{file}, row {number}", row


def hub_dataset(name: str, split: str, subset: str | None) -> Any:
    """Return a data set of the hub, or of a local folder, whose rows are streamed.

    Raises:
        InputError: If ``datasets`` is not installed, or the data set cannot be loaded.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError("dataset=... needs: pip install 'identilens[datasets]'.") from error
    try:
        return load_dataset(name, subset, split=split, streaming=True)
    except Exception as error:  # datasets raises many kinds: connection, file, value, build errors
        raise InputError(
            f"{name} cannot be loaded ({first_line(error)}). Check dataset=..., subset=... and split=...."
        ) from error
