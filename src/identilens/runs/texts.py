"""Texts from files, streams, data sets and frames, read one after the other; the size of what is read is bounded."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from identilens.errors import InputError
from identilens.runs.conllu import read_conllu
from identilens.runs.lines import (
    MAX_TEXT_BYTES,
    Limit,
    MostBytes,
    is_stream,
    kind_of,
    read_lines,
)
from identilens.runs.settings import Names, coerce
from identilens.runs.stored import HeldTexts, SpooledTexts, Texts, kept

_LONGEST_TEXT = 2**20
"""Largest number of characters in a text that is not cut."""

_PER_TOKEN = 256
"""Characters that are kept of a text for each token that it will be cut to: far more than any word has."""

_ROWS = 10_000
"""Rows of a parquet file that are read at a time."""

_TABLES = {".parquet": pl.scan_parquet, ".arrow": pl.scan_ipc}
"""Kinds of files that polars scans."""

_KINDS = (".txt", ".jsonl", ".csv", ".tsv", *_TABLES)

# Tab-separated corpora are written without quoting.
_SEPARATED: dict[str, dict[str, Any]] = {
    ".csv": {"delimiter": ",", "quoting": csv.QUOTE_MINIMAL, "strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "strict": True},
}
"""How the fields of a line are separated."""

Rows = Iterator[tuple[str, Mapping[Any, Any]]]
"""The position of a row, for messages, and its values by column."""


def read_texts(
    source: Any,
    *,
    columns: Sequence[str] = (),
    encoding: str = "utf-8",
    pairs: bool = False,
    limit: int | None = None,
    max_length: int | None = None,
    max_text_bytes: int = MAX_TEXT_BYTES,
) -> Sequence[Any]:
    """Return the texts of a file, a data set or a list; pairs if two columns are named, or if ``pairs`` is set.

    A file is .txt (one text per line, blank lines skipped), .jsonl, .csv, .tsv, .parquet or .arrow, the first four
    optionally compressed as .gz or .xz, or a treebank (.conllu). A pipe, or ``-`` for the standard input, has one text
    per line, or one object per line if columns are named. Other sources: a data set (`datasets`, also streaming), a
    frame or a column (pandas, polars), any iterable. Pairs are every two texts of a list, tab-separated lines of a .txt
    file, or two columns.

    Texts of a list stay in memory. All others are checked and copied to a temporary file, from which each is read when
    it is asked for; the file is deleted with them.

    Args:
        source: File, stream, data set, frame or iterable with the texts.
        columns: Columns with the texts.
        encoding: Encoding of a file.
        pairs: Whether the texts are pairs.
        limit: Maximum number of texts.
        max_length: Number of tokens to which texts are cut later; the rest of a very long text is not stored.
        max_text_bytes: Maximum size of the texts, and of a file of lines after decompression.

    Raises:
        InputError: For a missing or unreadable file, one without texts, a wrong encoding, a missing column, an empty
            text, a text that is too long, more bytes than allowed, or a line that is not a pair although pairs are
            expected. The message names the line.

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
    encoding = coerce("encoding", str, encoding)
    pairs = coerce("pairs", bool, pairs)
    limit = coerce("limit", Limit, limit)
    max_length = coerce("max_length", Limit, max_length)
    most = coerce("max_text_bytes", MostBytes, max_text_bytes)
    if not isinstance(source, str | Path):
        named, rows = _rows(source, columns, pairs, limit)
        texts = rows if named is None else _texts(rows, named, limit, max_length)
        return HeldTexts(texts) if isinstance(source, list) else kept(texts, most)
    file = Path(source)
    if kind_of(file) == ".conllu":
        if pairs or columns:
            raise InputError(
                f"{source} has one sentence for each text: leave out pairs=True and columns=...."
            )
        read: Texts = HeldTexts(read_conllu(file, limit, most))
    else:
        rows = _file_rows(file, list(columns), encoding, pairs, most)
        texts = _texts(rows, columns, limit, max_length)
        # Lines are limited as they are read.
        read = kept(texts, most) if file.suffix in _TABLES else SpooledTexts(texts)
    if not read:
        raise InputError(f"{source} contains no texts.")
    options = {"encoding": encoding, "pairs": pairs, "limit": limit, "max_text_bytes": most}
    read.load_options = {"file": file, "column": columns, **options}
    return read


def _rows(
    source: Any, columns: Sequence[str], pairs: bool, limit: int | None
) -> tuple[Sequence[str] | None, Iterator[Any]]:
    """Return the columns and rows of what was given in Python; no columns (None) where its rows are the texts."""
    if (
        not isinstance(source, Iterable)
        or isinstance(source, Mapping | bytes | bytearray)
        or getattr(source, "ndim", 1) == 0
    ):
        raise InputError(f"expected a file, a data set or texts; got {type(source).__name__}.")
    if is_columns(source):
        columns, rows = _column_rows(source, columns)
        if pairs and len(columns) < 2:
            raise InputError("pairs=True needs two columns=..., one for each sentence of a pair.")
        return columns, rows
    if columns:
        raise InputError(f"columns=... is for files and data sets; got {type(source).__name__}.")
    if not pairs:
        return None, islice(source, limit)
    texts = list(islice(source, limit and 2 * limit))
    if len(texts) % 2:
        raise InputError(
            f"pairs=True reads every two texts as a pair; got {len(texts)}. Give one more, or one less."
        )
    return None, islice(zip(texts[::2], texts[1::2], strict=True), limit)


def _texts(
    rows: Rows, columns: Sequence[str], limit: int | None, max_length: int | None
) -> Iterator[Any]:
    """Return the texts in columns of rows."""
    return islice((_text(row, columns, position, max_length) for position, row in rows), limit)


def _text(
    row: Mapping[Any, Any], columns: Sequence[str], position: str, max_length: int | None
) -> str | tuple[str, ...]:
    """Return the text in a column of a row, or the pair in two; a text that will be cut is shortened."""
    texts = []
    for column in columns or row:
        if column not in row:
            known = ", ".join(map(str, row))
            raise InputError(
                f"{position}: no column {column!r}; there are {known}. Pass one with columns=...."
            )
        text = row[column]
        if not isinstance(text, str) or not text.strip():
            where = f"column {column!r}" if columns else "the text"
            raise InputError(f"{position}: {where} is empty or not a text. Remove it.")
        if max_length is not None:
            text = text[: max(2**16, _PER_TOKEN * max_length)]
        elif len(text) > _LONGEST_TEXT:
            raise InputError(
                f"{position}: the text has {len(text):,} characters; no model reads more than {_LONGEST_TEXT:,}. "
                "Pass max_length=... to cut it, or split it."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{position}: half a character (surrogate {text[error.start]!a}) at {error.start}. Correct the text."
            ) from error
        texts.append(text)
    return texts[0] if len(texts) == 1 else tuple(texts)


def _file_rows(file: Path, columns: list[str], encoding: str, pairs: bool, most: int) -> Rows:
    if file.suffix in _TABLES:
        _check_columns(file, file.suffix, columns, pairs)
        yield from _table_rows(file, columns)
    else:
        yield from _line_rows(file, columns, encoding, pairs, most)


def _check_columns(file: Path, kind: str, columns: list[str], pairs: bool) -> None:
    if kind not in _KINDS:
        raise InputError(
            f"{file} ends in {kind or 'nothing'}; expected {', '.join(_KINDS)}, .conllu (or with .gz, .xz)."
        )
    if kind == ".txt" and columns:
        raise InputError(
            f"columns=... is for .jsonl, .csv, .tsv, .parquet and .arrow files; {file} has one text per line."
        )
    if kind != ".txt" and not 1 <= len(columns) <= 2:
        raise InputError(
            f"{file} needs columns=... for its texts: one, or two for pairs; got {len(columns)}."
        )
    if pairs and len(columns) == 1:
        raise InputError(
            f"pairs=True needs two columns=..., one for each sentence of a pair; got only {columns[0]!r}."
        )


def _line_rows(file: Path, columns: list[str], encoding: str, pairs: bool, most: int) -> Rows:
    kind = kind_of(file)
    if is_stream(file):
        kind = kind or (".jsonl" if columns else ".txt")
    _check_columns(file, kind, columns, pairs)
    lines = read_lines(file, encoding, most)
    if kind in _SEPARATED:
        yield from _separated_rows(lines, file, columns, tabs=kind == ".tsv")
        return
    for position, line in lines:
        content = line.strip()
        if not content:
            continue
        if kind == ".jsonl":
            yield position, _json_object(line, position)
            continue
        parts = [part.strip() for part in content.split("\t")] if pairs else [content]
        if pairs and len(parts) != 2:
            raise InputError(
                f"{position}: pairs=True expects two sentences with a tab between; got {len(parts)} "
                f"{'part' if len(parts) == 1 else 'parts'}. Leave it out if each line is one text."
            )
        yield position, dict(enumerate(parts))


def _json_object(line: str, position: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise ValueError(f"the name {name!r} stands there twice; remove one")
        return dict(pairs)

    try:
        row = json.loads(line, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{position}: not valid JSON ({error}).") from error
    if not isinstance(row, dict):
        raise InputError(f"{position}: expected a JSON object, got {type(row).__name__}.")
    return row


def _separated_rows(
    lines: Iterable[tuple[str, str]], file: Path, columns: list[str], *, tabs: bool
) -> Rows:
    texts = (line for _, line in lines)
    reader = csv.reader(texts, **_SEPARATED[".tsv" if tabs else ".csv"])
    remedy = "Put texts with commas or line ends between quotes."
    if tabs:
        remedy = "Remove the tabs in its texts."
    header: list[str] = []
    start = 1
    try:
        for fields in reader:
            position, start = f"{file}, line {start}", reader.line_num + 1
            if not header:
                header = fields
                _refuse_repeated(columns, header, f"{position}: the header has")
            elif fields and len(fields) != len(header):
                raise InputError(
                    f"{position}: expected {len(header)} fields, as in the header; got {len(fields)}. {remedy}"
                )
            elif fields:
                yield position, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{file}, line {start}: {error}. Close every quote, double those inside a text, and put longer texts "
            "into a .jsonl file."
        ) from error


def _refuse_repeated(columns: Iterable[str], names: Sequence[str], where: str) -> None:
    for column in columns:
        if names.count(column) > 1:
            raise InputError(
                f"{where} the column {column!r} twice or more. Rename all but one of them."
            )


def _table_rows(file: Path, columns: list[str]) -> Rows:
    try:
        lazy = _TABLES[file.suffix](file, glob=False, hive_partitioning=False)
        schema = lazy.collect_schema()
        for column in columns:
            if column not in schema:
                raise InputError(
                    f"{file}: no column {column!r}; there are {', '.join(schema)}. Pass another columns=...."
                )
            if schema[column] not in (pl.String, pl.Categorical, pl.Enum):
                raise InputError(
                    f"{file}: column {column!r} contains no texts but {schema[column]}. Pass another columns=...."
                )
        # Polars takes some names for patterns.
        lazy, number = lazy.select(pl.nth(*map(list(schema).index, columns))), 0
        while len(frame := lazy.slice(number, _ROWS).collect()):
            for row in frame.iter_rows(named=True, buffer_size=1):
                yield f"{file}, row {number}", row
                number += 1
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def is_columns(source: Any) -> bool:
    """Return whether the source has columns: a data set, a frame, or a column of one."""
    return type(source).__module__.split(".")[0] in ("datasets", "pandas", "polars")


def _column_rows(source: Any, columns: Sequence[str]) -> tuple[Sequence[str], Rows]:
    """Return the columns of the texts, and the rows, of a data set, a frame or a column of one."""
    names = getattr(source, "column_names", getattr(source, "columns", None))
    if names is None and hasattr(source, "features"):
        first = next(iter(source), None)
        names = first if isinstance(first, Mapping) else None
    if names is None:
        return (), ((f"row {number}", {"": value}) for number, value in enumerate(source))
    names = [str(name) for name in names]
    if not columns and ("text" in names or len(names) == 1):
        columns = ["text" if "text" in names else names[0]]
    if not 1 <= len(columns) <= 2 or not set(columns) <= set(names):
        raise InputError(
            "name the column of the texts, or two for pairs: columns=...; there are "
            f"{', '.join(names)}; got {', '.join(columns) or 'none'}."
        )
    _refuse_repeated(columns, names, "the frame has")
    rows = source
    if hasattr(source, "iter_rows"):
        rows = source.iter_rows(named=True)
    elif hasattr(source, "iterrows"):
        rows = source.set_axis(names, axis=1).to_dict("records")
    return columns, ((f"row {number}", row) for number, row in enumerate(rows))


def hub_dataset(name: str, split: str, subset: str | None) -> Any:
    """Return a data set of the hub, whose rows are streamed, or of a local folder, also of one saved to disk.

    Raises:
        InputError: If ``datasets`` is not installed, or the data set cannot be loaded.
    """
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError as error:
        raise InputError("dataset=... needs: pip install 'identilens[datasets]'.") from error
    try:
        if (Path(name) / "state.json").is_file():  # one split, saved by Dataset.save_to_disk
            return load_from_disk(name)
        if (Path(name) / "dataset_dict.json").is_file():  # several, by DatasetDict.save_to_disk
            return load_from_disk(name)[split]
        return load_dataset(name, subset, split=split, streaming=True)
    except Exception as error:  # datasets raises many kinds: connection, file, value, build errors
        first = (str(error).strip() or repr(error)).splitlines()[0]
        raise InputError(
            f"{name} cannot be loaded ({first}). Check dataset=..., subset=... and split=...."
        ) from error
