"""Writing files whole or not at all."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from safetensors.torch import save_file
from torch import Tensor

from identilens.errors import OutputFolderError


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it: readers see all of it or nothing.

    Raises:
        OutputFolderError: If the disk is full or the folder cannot be written; ``path`` is as it was before.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with translated_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """Turn failures of the file system into an `OutputFolderError` that says what to do."""
    try:
        yield
    except Exception as error:
        # polars and safetensors report a full disk as errors of their own.
        system = isinstance(error, OSError)
        if not system and "os error" not in str(error).lower() and "no space" not in str(error).lower():
            raise
        raise OutputFolderError(
            f"could not write {path}: {getattr(error, 'strerror', None) or error}. "
            "Nothing that was finished before is lost; "
            f"free some space{' or fix the permissions' if system else ''}, then run the same command with --resume."
        ) from error


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a parquet file atomically."""
    write_atomically(path, table.write_parquet)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically, readable by people."""
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=False)
    write_atomically(path, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    held: set[int] = set()
    contiguous: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        # The format refuses tensors that share memory, as equal matrices may.
        memory = own.untyped_storage().data_ptr()
        contiguous[name] = own.clone() if memory in held else own
        held.add(memory)
    write_atomically(path, lambda temporary: save_file(contiguous, temporary))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
