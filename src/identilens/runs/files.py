"""Writing files whole or not at all, and noting them in the manifest of the run that they belong to."""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from safetensors.torch import save_file
from torch import Tensor

from identilens.errors import OutputFolderError
from identilens.runs.manifest import TEMPORARY, digest_of, manifest_of
from identilens.runs.mirror import settle

_FULL_DISK = ("os error", "no space", "file write failed", "file too large", "errno")
"""What stands in the messages of libraries that report failures of the file system as errors of their own."""


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it: readers see all of it or nothing.

    Raises:
        OutputFolderError: If the disk is full, or the folder cannot be written or is gone; ``path`` is as before.
    """
    temporary, manifest = _temporary(path), manifest_of(path)
    with translated_write_errors(path):
        if manifest is not None:
            manifest.check_there()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Made here, so that its permissions are those that the umask gives.
            temporary.touch(exist_ok=False)
            permissions = temporary.stat().st_mode
            write(temporary)
            temporary.chmod(permissions)
            _take_place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_folder(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary folder beside ``path``, then give each of its files its place there.

    Raises:
        OutputFolderError: As `write_atomically`.
    """
    temporary = _temporary(path)
    with translated_write_errors(path):
        try:
            temporary.mkdir(parents=True)
            (probe := temporary / "probe").touch()
            permissions = probe.stat().st_mode
            probe.unlink()
            write(temporary)
            for file in sorted(one for one in temporary.rglob("*") if one.is_file()):
                file.chmod(permissions)
                place = path / file.relative_to(temporary)
                place.parent.mkdir(parents=True, exist_ok=True)
                _take_place(file, place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")


def _take_place(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    if (manifest := manifest_of(path)) is not None:
        manifest.add(path, digest_of(temporary))
    temporary.replace(path)
    settle(path)


@contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """Turn failures of the file system into an `OutputFolderError` that says what to do."""
    try:
        yield
    except OutputFolderError:
        raise
    except Exception as error:
        system = isinstance(error, OSError)
        if not system and not any(words in str(error).lower() for words in _FULL_DISK):
            raise
        raise OutputFolderError(
            f"could not write {path}: {getattr(error, 'strerror', None) or error}. "
            "Finished parts are not lost; "
            f"free some space{' or fix the permissions' if system else ''}, then run the same command with --resume."
        ) from error


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a parquet file atomically."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            table.write_parquet(file)

    write_atomically(path, write)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically, readable by people."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, sort_keys=False) + "\n")


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
    """Write a UTF-8 text file atomically; what UTF-8 cannot hold is escaped."""
    content = text.encode("utf-8", "backslashreplace")
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
