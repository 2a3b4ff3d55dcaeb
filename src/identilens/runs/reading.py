"""Reading the files of a run: damage is detected here, with the name of the file."""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from identilens.errors import OutputFolderError
from identilens.runs.files import MANIFEST, PROVENANCE, Manifest
from identilens.runs.parquet import expanded
from identilens.runs.provenance import Record
from identilens.runs.tables import Columns

_PER_VALUE = 16
"""Bytes of memory that a value of a table takes, where that of a text is not counted."""

_MOST_EXPANSION = 400
"""Largest factor by which a table takes more memory than space on disk: some columns have one value throughout."""

_SMALL_TABLE = 2**27
"""Bytes of memory that any table may take."""

_LONG_TEXT = 256
"""Bytes from which a text in a cell is long; tokens and names are shorter, and count as any other value."""

_FEW_TEXTS = 2**21
"""Bytes that the long texts of any table may take: a report has them several times, in charts and in tables."""

_MOST_REPETITION = 10
"""Largest factor by which the long texts of a table, notes on its rows, take more bytes than the table on disk."""

_NAMES = {
    ("layer", "head", "kind"): 2**16,
    ("explanation",): 2**16,
    ("alternative",): 2**16,
    ("intervention",): 2**16,
    ("tolerance",): 2**10,
    ("weights",): 2**10,
}
"""Columns that together name what charts and tables of a report list one by one, and how many of these a table names.

No model has as many heads.
"""

_REMEDY = "Restore it from a copy, or run again (overwrite=True, or another folder)."
_KNOWN_ERRORS = (ValueError, OSError, RecursionError, SafetensorError, pl.exceptions.PolarsError)

_RECORD = {
    "analysis": str,
    "fingerprint": str,
    "model": {"name?": str, "sha256?": str, "digest?": str},
    "settings": dict,
    "texts": {"count": int, "sha256": [str]},
    "libraries": dict,
    "finished": bool,
    "command?": [str],
    "later_versions?": [{"libraries": dict}],
}
"""Form of a provenance; a value whose name ends in a question mark may be missing."""


@contextmanager
def errors_naming(file: Path) -> Iterator[None]:
    """Turn errors of libraries on a damaged file into one that names the file.

    Raises:
        OutputFolderError: In place of them, and for a pipe or a device, which could not be read to its end.
    """
    try:
        if file.exists() and not file.is_file():
            raise ValueError("it is no file")
        yield
    except BaseException as error:
        # polars panics on some files; a panic is no Exception.
        if not isinstance(error, _KNOWN_ERRORS) and type(error).__name__ != "PanicException":
            raise
        why = getattr(error, "strerror", None) or error
        raise OutputFolderError(f"{file} cannot be read: {why}. {_REMEDY}") from error


def read_json(file: Path) -> Any:
    """Return the content of a JSON file of a run."""
    with errors_naming(file):
        return json.loads(file.read_bytes())


def read_table(file: Path, columns: Columns, keys: Sequence[str] = ()) -> pl.DataFrame:
    """Return a table of a run, in the given columns and types, with one row for each value of the keys."""
    with errors_naming(file):
        # Read from memory: polars treats some paths as patterns.
        table = parquet_table([file.read_bytes()])
        if set(table.columns) != set(columns):
            raise ValueError(
                f"expected the columns {', '.join(columns)}; got {', '.join(table.columns)}; another version of "
                "identilens may have written it, which reads it"
            )
        table, schema = table.select(list(columns)), pl.Schema(columns)
        # Conversion would cut numbers.
        if table.schema != schema:
            raise ValueError(f"expected columns of the types {schema}; got {table.schema}")
        for names, most in _NAMES.items():
            present = [name for name in names if name in columns]
            count = table.select(present).n_unique() if present else 0
            if count > most:
                what = "heads" if "head" in names else f"values of {names[0]}"
                raise ValueError(f"it names {count:,} {what}; no run has so many")
        if keys and table.select(keys).is_duplicated().any():
            raise ValueError(f"several rows have the same {', '.join(keys)}")
        return table


def parquet_table(contents: Sequence[bytes]) -> pl.DataFrame:
    """Return the tables in the contents of parquet files as one.

    Raises:
        ValueError: If one takes far more memory than tables of studies do, or has far longer texts.
    """
    for content in contents:
        size, values = expanded(io.BytesIO(content))
        memory, most = size + _PER_VALUE * values, max(_SMALL_TABLE, _MOST_EXPANSION * len(content))
        if memory > most:
            raise ValueError(
                f"it takes {memory:,} bytes of memory, and a table of its size on disk up to {most:,}"
            )
    table = pl.read_parquet([io.BytesIO(content) for content in contents])
    texts, most = _text_size(table), max(_FEW_TEXTS, _MOST_REPETITION * sum(map(len, contents)))
    if texts > most:
        raise ValueError(
            f"its long texts have {texts:,} bytes, and those of a table of its size on disk up to {most:,}"
        )
    return table


def _text_size(table: pl.DataFrame) -> int:
    """Return the bytes of the long texts in all cells: equal texts count each time, though they are stored once."""
    size = 0
    for column in table:
        texts = column.explode() if column.dtype == pl.List(pl.String) else column
        if texts.dtype == pl.String:
            lengths = texts.str.len_bytes().cast(pl.Int64)
            size += int(lengths.filter(lengths >= _LONG_TEXT).sum())
    return size


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of a run."""
    with errors_naming(file):
        return load(file.read_bytes())


def tensor_names(file: Path) -> list[str]:
    """Return the names of the tensors of a file of a run."""
    with errors_naming(file), safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())


def read_tokens(file: Path) -> dict[str, list[str]]:
    """Return the tokens of a text by sequence."""
    content = read_json(file)
    with errors_naming(file):
        if not isinstance(content, dict) or not _matches([*content.values()], [[str]]):
            raise ValueError("expected lists of tokens by sequence")
    return content


def read_record(folder: Path) -> Record | None:
    """Return the provenance of the run that a folder contains, or None.

    Raises:
        OutputFolderError: If its file is no provenance.
    """
    file = folder / PROVENANCE
    try:
        if not file.is_file():
            return None
        record = json.loads(file.read_bytes())
    except OSError as error:
        raise OutputFolderError(
            f"{file} cannot be read: {error.strerror}. Choose another folder."
        ) from error
    except (ValueError, RecursionError) as error:
        raise OutputFolderError(
            f"{file} is not valid JSON ({error}). Choose another folder."
        ) from error
    if (
        not _matches(record, _RECORD)
        or not _matches([*record["libraries"].values()], [str])
        or record["texts"]["count"] < 0
    ):
        raise OutputFolderError(f"{file} was not written by identilens. Choose another folder.")
    return record


def finished_record(folder: Path, analysis: str) -> Record:
    """Return the provenance of the finished run that a folder contains.

    Raises:
        OutputFolderError: If the folder contains no such run, or an interrupted or damaged one.
    """
    record = read_record(folder)
    if record is None or record["analysis"] != analysis:
        raise OutputFolderError(
            f"{folder} contains no {analysis} result. Pass the folder of a run: the value of its out=... argument."
        )
    if not record["finished"]:
        raise OutputFolderError(
            f"the {analysis} run in {folder} was interrupted. Finish it with resume=True first."
        )
    if PROVENANCE not in Manifest(folder).names:
        raise OutputFolderError(f"{folder / MANIFEST} is missing or damaged. {_REMEDY}")
    return record


def _matches(content: Any, form: Any) -> bool:
    """Return whether a value of JSON has a form: a type, a list of one form, or an object with forms by name."""
    if isinstance(form, type):
        return isinstance(content, form)
    if isinstance(form, list):
        return isinstance(content, list) and all(_matches(item, form[0]) for item in content)
    if not isinstance(content, dict):
        return False
    values = {name: content.get(name.rstrip("?")) for name in form}
    return all(
        (name.endswith("?") and value is None) or _matches(value, form[name])
        for name, value in values.items()
    )
