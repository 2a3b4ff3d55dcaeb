"""Reading the files of a run: damage is detected here, with the name of the file."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from identilens.errors import InputError, OutputFolderError
from identilens.runs.files import MANIFEST, PROVENANCE, Manifest
from identilens.runs.provenance import FORMAT, Record
from identilens.runs.tables import Columns

_REMEDY = "Restore it from a copy, or run again (overwrite=True, or another folder)."
_ERRORS = (
    ValueError,
    OSError,
    RecursionError,
    SafetensorError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
"""What libraries raise for damaged files."""


@contextmanager
def errors_naming(file: Path) -> Iterator[None]:
    """Turn errors of libraries on a damaged file into one that names the file.

    Raises:
        OutputFolderError: In place of them.
    """
    try:
        yield
    except InputError:
        raise
    except _ERRORS as error:
        why = getattr(error, "strerror", None) or error
        raise OutputFolderError(f"{file} cannot be read: {why}. {_REMEDY}") from error


def read_json(file: Path) -> Any:
    """Return the content of a JSON file of a run."""
    with errors_naming(file):
        return json.loads(file.read_bytes())


def read_table(file: Path, columns: Columns) -> pl.DataFrame:
    """Return a table of a run, in the given columns and types."""
    with errors_naming(file):
        # Read from memory: polars treats some paths as patterns.
        content = io.BytesIO(file.read_bytes())
        return pl.read_parquet(content, schema=columns)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of a run."""
    with errors_naming(file):
        return load(file.read_bytes())


def read_record(folder: Path) -> Record | None:
    """Return the provenance of the run that a folder contains, or None.

    Raises:
        OutputFolderError: If its file is no provenance, or that of a run of another format.
    """
    file = folder / PROVENANCE
    with errors_naming(file):
        if not file.is_file():
            return None
        record = json.loads(file.read_bytes())
    if not isinstance(record, dict) or "finished" not in record:
        raise OutputFolderError(f"{file} was not written by identilens. Choose another folder.")
    if record.get("format") != FORMAT:
        raise OutputFolderError(
            f"{folder} has the run of another version of identilens (format {record.get('format')!r:.20}); this one "
            f"reads format {FORMAT}. Run again: overwrite=True deletes it; or choose another folder."
        )
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
