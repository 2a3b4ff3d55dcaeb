"""Reading the files of a run: the one place where damage is detected, with the name of the file."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EINVAL
from pathlib import Path
from typing import IO, Any

import polars as pl
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from identilens.errors import OutputFolderError
from identilens.runs.manifest import NAME, PROVENANCE, Manifest, digest_of
from identilens.runs.parquet import expanded
from identilens.runs.tables import Columns

_REMEDY = "Restore it from a copy, or run again (--overwrite, or another folder)."
_AT_ONCE = 256
"""Files that are read together."""

_PER_VALUE = 16
"""Bytes of memory that a value of a table takes, where that of a text is not counted."""

_MOST_EXPANSION = 400
"""Largest factor by which a table takes more memory than space on disk: some columns have one value throughout."""

_SMALL_TABLE = 2**28
"""Bytes of memory that any table may take."""

_RECORD = {
    "analysis": str, "fingerprint": str, "model": dict, "settings": dict, "texts": dict, "libraries": dict,
    "finished": bool,
}  # fmt: skip
_TEXTS = {"count": int, "sha256": list}
_LATER = {"later_versions": list}
_VERSIONS = {"libraries": dict}
_NAMES = {"name": str | None, "sha256": str | None, "digest": str | None}


def read_bytes(manifest: Manifest, file: Path) -> bytes:
    """Return the content of a file of a run.

    Raises:
        OutputFolderError: If it cannot be read, or differs from what the run wrote.
    """
    with _translated_errors(file):
        content = _regular(file).read_bytes()
    _check(manifest, file, hashlib.sha256(content).hexdigest())
    return content


def check_file(manifest: Manifest, file: Path) -> None:
    """Raise OutputFolderError if a file of a run cannot be read, or differs from what the run wrote."""
    with _translated_errors(file):
        digest = digest_of(_regular(file))
    _check(manifest, file, digest)


def _regular(file: Path) -> Path:
    """Return a path, if it does not lead to a pipe or a device, which could not be read to its end."""
    if file.exists() and not file.is_file():
        raise OSError(EINVAL, "it is no file")
    return file


def read_json(manifest: Manifest, file: Path) -> Any:
    """Return the content of a JSON file of a run; raises as `read_bytes`."""
    content = read_bytes(manifest, file)
    with _translated_errors(file):
        return json.loads(content)


def read_table(manifest: Manifest, file: Path, columns: Columns | None = None) -> pl.DataFrame:
    """Return a table of a run, in the given columns and types; raises as `read_bytes`, and for other columns."""
    # Read from memory: polars treats some paths as patterns.
    content = _table_bytes(manifest, file)
    with _translated_errors(file):
        table = pl.read_parquet(content)
        if columns is None:
            return table
        if set(table.columns) != set(columns):
            raise ValueError(f"expected the columns {', '.join(columns)}; got {', '.join(table.columns)}")
        return table.select(list(columns)).cast(pl.Schema(columns))


def read_tables(manifest: Manifest, files: Sequence[Path]) -> pl.DataFrame:
    """Return several tables of a run as one; raises as `read_bytes`. One by one would take three times as long."""
    frames = []
    for start in range(0, len(files), _AT_ONCE):
        contents: list[IO[bytes]] = [_table_bytes(manifest, file) for file in files[start : start + _AT_ONCE]]
        with _translated_errors(files[start]):
            frames.append(pl.read_parquet(contents))
    return pl.concat(frames)


def _table_bytes(manifest: Manifest, file: Path) -> io.BytesIO:
    """Return the content of a table, if it does not take far more memory than tables of studies do."""
    content = io.BytesIO(read_bytes(manifest, file))
    with _translated_errors(file):
        size = expanded(content)
        memory = size.bytes + _PER_VALUE * size.values
        most = max(_SMALL_TABLE, _MOST_EXPANSION * content.seek(0, io.SEEK_END))
        if memory > most:
            raise ValueError(f"it takes {memory:,} bytes of memory, and a table of its size on disk up to {most:,}")
    content.seek(0)
    return content


def read_tensors(manifest: Manifest, file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of a run; raises as `read_bytes`."""
    content = read_bytes(manifest, file)
    with _translated_errors(file):
        return load(content)


def tensor_names(manifest: Manifest, file: Path) -> list[str]:
    """Return the names of the tensors of a file of a run, whose values are not checked; raises as `read_bytes`."""
    with _translated_errors(file):
        try:
            with safe_open(_regular(file), framework="pt") as tensors:
                return list(tensors.keys())
        except SafetensorError:
            check_file(manifest, file)
            raise


def read_tokens(manifest: Manifest, file: Path) -> dict[str, list[str]]:
    """Return the tokens of a text by sequence; raises as `read_bytes`, and for other content."""
    content = read_json(manifest, file)
    with _translated_errors(file):
        if not isinstance(content, dict) or not all(map(_are_words, content.values())):
            raise ValueError("expected lists of tokens by sequence")
    return content


def _are_words(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(one, str) for one in content)


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the provenance of the run that a folder contains, or None.

    Raises:
        OutputFolderError: If its file is no provenance, or differs from what the run wrote.
    """
    file, manifest = folder / PROVENANCE, Manifest(folder)
    try:
        if not file.is_file():
            return None
        content = file.read_bytes()
    except OSError as error:
        raise OutputFolderError(f"{file} cannot be read: {error.strerror}. Choose another folder.") from error
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise OutputFolderError(f"{file} is not valid JSON ({error}). Choose another folder.") from error
    if not _is_record(record):
        raise OutputFolderError(f"{file} was not written by identilens. Choose another folder.")
    if manifest.digests:
        _check(manifest, file, hashlib.sha256(content).hexdigest())
    return record


def finished_record(folder: Path, analysis: str) -> dict[str, Any]:
    """Return the provenance of the finished run that a folder contains.

    Raises:
        OutputFolderError: If the folder contains no such run, or an interrupted or damaged one.
    """
    record = read_record(folder)
    if record is None or record["analysis"] != analysis:
        raise OutputFolderError(f"{folder} contains no {analysis} result. Pass the folder given as out (--out).")
    if not record["finished"]:
        raise OutputFolderError(f"the {analysis} run in {folder} was interrupted. Finish it with --resume first.")
    return record


def _is_record(record: Any) -> bool:
    return (
        _has(record, _RECORD)
        and _has(record["texts"], _TEXTS)
        and _has(record["model"], _NAMES, optional=True)
        and _has(record, _LATER, optional=True)
        and all(_has(run, _VERSIONS) for run in record.get("later_versions", []))
        and _are_words(record["texts"]["sha256"])
        and _are_words(list(record["libraries"].values()))
        and _are_words(record.get("command") or [])
        and record["texts"]["count"] >= 0
    )


def _has(content: Any, kinds: Mapping[str, Any], optional: bool = False) -> bool:
    """Return whether a value is an object with values of these types under these names."""
    return isinstance(content, dict) and all(
        isinstance(content.get(name), kind) or (optional and name not in content) for name, kind in kinds.items()
    )


@contextmanager
def _translated_errors(file: Path) -> Iterator[None]:
    """Turn errors of libraries on a damaged file into one that names the file."""
    known = (ValueError, OSError, RecursionError, SafetensorError, pl.exceptions.PolarsError)
    try:
        yield
    except BaseException as error:
        # polars panics on some files; a panic is no Exception.
        if not isinstance(error, known) and type(error).__name__ != "PanicException":
            raise
        why = getattr(error, "strerror", None) or error
        raise OutputFolderError(f"{file} cannot be read: {why}. {_REMEDY}") from error


def _check(manifest: Manifest, file: Path, digest: str) -> None:
    if manifest.holds(file, digest):
        return
    if not manifest.digests:
        raise OutputFolderError(f"{manifest.file} is missing or damaged, so {file} cannot be trusted. {_REMEDY}")
    raise OutputFolderError(
        f"{file} differs from what the run wrote ({NAME} has another digest): it was cut short, changed or replaced. "
        f"{_REMEDY}"
    )
