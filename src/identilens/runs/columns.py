"""Texts from columns: parquet files, data frames, and data sets of `datasets`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from identilens.errors import InputError
from identilens.runs.compressed import MAX_TEXT_BYTES, too_large
from identilens.runs.parquet import expanded

_AT_ONCE = 10_000
"""Rows of a parquet file that are read at a time."""

_PER_VALUE = 8
"""Bytes of a page, beside those of its texts, that each text may take."""

Rows = Iterator[tuple[str, Any]]
"""The position of a text, for messages, and the text or pair."""


def is_columns(source: Any) -> bool:
    """Return whether the source has columns: a data set, a frame, or a column of one."""
    return type(source).__module__.split(".")[0] in ("datasets", "pandas", "polars")


def column_texts(source: Any, columns: Sequence[str] = ()) -> Rows:
    """Yield the texts of a data set, a frame or a column of one.

    Raises:
        InputError: If it is not clear which column contains the texts, or a value is not a text.
    """
    names = [str(name) for name in _names(source)]
    if not names:
        return ((f"row {number}", _text(value, number, "")) for number, value in enumerate(source))
    chosen = list(columns) or (["text"] if "text" in names else names if len(names) == 1 else [])
    if not 1 <= len(chosen) <= 2 or set(chosen) - set(names):
        got = ", ".join(chosen) or "none"
        raise InputError(
            f"name the column of the texts, or two for pairs (--column); there are {', '.join(names)}; got {got}."
        )
    if repeated := [name for name in chosen if names.count(name) > 1]:
        raise InputError(f"there are several columns {repeated[0]!r}. Rename all but one.")
    return _picked(_row_dicts(source), chosen)


def parquet_rows(file: Path, columns: Sequence[str], most: int = MAX_TEXT_BYTES) -> Rows:
    """Yield the texts of a parquet file; some thousand rows are in memory at a time.

    Raises:
        InputError: If it cannot be read, lacks a column, or contains more than ``most`` bytes of text.
    """
    left = most
    try:
        with file.open("rb") as stream:
            schema = pl.read_parquet_schema(stream)
            size = expanded(stream, columns)
        _check_columns(file, columns, schema)
        if size.bytes > most + _PER_VALUE * size.values:
            raise too_large(file, most)
        lazy = pl.scan_parquet(file, glob=False, hive_partitioning=False).select(columns)
        for start in range(0, lazy.select(pl.len()).collect().item(), _AT_ONCE):
            frame = lazy.slice(start, _AT_ONCE).collect()
            # Equal texts share their memory in a frame, but not as strings.
            lengths = pl.all().cast(pl.String).str.len_bytes().cast(pl.Int64)
            sizes = frame.select(pl.sum_horizontal(lengths).cum_sum()).to_series()
            allowed = frame.filter(sizes <= left)
            for number, row in enumerate(allowed.iter_rows(named=True), start):
                place, text = next(_picked([row], columns, number))
                yield f"{file}, {place}", text
            if len(allowed) < len(frame):
                raise too_large(file, most)
            left -= sizes[-1]
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} cannot be read: {error}") from error


def _check_columns(file: Path, columns: Sequence[str], schema: Mapping[str, Any]) -> None:
    for column in columns:
        if column not in schema:
            raise InputError(f"{file}: no column {column!r}; there are {', '.join(schema)}. Pass one with --column.")
        if schema[column] not in (pl.String, pl.Categorical, pl.Enum):
            raise InputError(
                f"{file}: column {column!r} contains no texts but {schema[column]}. Pass another --column."
            )


def hub_dataset(name: str, split: str, subset: str | None) -> Any:
    """Return a data set of the hub, whose rows are streamed, or of a local folder, also of one saved to disk.

    Raises:
        InputError: If ``datasets`` is not installed, or the data set cannot be loaded.
    """
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError as error:
        raise InputError("--dataset needs: pip install 'identilens[datasets]'.") from error
    try:
        if (Path(name) / "state.json").is_file():  # one split, as Dataset.save_to_disk writes it
            return load_from_disk(name)
        if (Path(name) / "dataset_dict.json").is_file():  # several, as DatasetDict.save_to_disk writes them
            return load_from_disk(name)[split]
        return load_dataset(name, subset, split=split, streaming=True)
    except Exception as error:  # datasets raises many kinds: connection, file, value, build errors
        first = (str(error).strip() or repr(error)).splitlines()[0]
        raise InputError(f"{name} cannot be loaded ({first}). Check --dataset, --subset and --split.") from error


def _names(source: Any) -> Iterable[Any]:
    """Return the names of the columns; none for a single column."""
    for name in ("column_names", "columns"):
        if (names := getattr(source, name, None)) is not None:
            return names
    if hasattr(source, "features") and (first := next(iter(source), None)) is not None and isinstance(first, Mapping):
        return first
    return ()


def _row_dicts(source: Any) -> Iterable[Mapping[str, Any]]:
    if hasattr(source, "iter_rows"):
        return source.iter_rows(named=True)
    return source.to_dict("records") if hasattr(source, "iterrows") else source


def _picked(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], first: int = 0) -> Rows:
    for number, row in enumerate(rows, first):
        values = [_text(row[column], number, f", column {column!r}") for column in columns]
        yield f"row {number}", values[0] if len(values) == 1 else tuple(values)


def _text(value: Any, number: int, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"row {number}{where} is empty or not a text. Remove the row.")
    return value
