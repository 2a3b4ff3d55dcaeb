"""Writing files atomically, and adding them to the manifest of the run that they belong to."""

import io
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from safetensors.torch import save
from torch import Tensor

from identilens.errors import InputError, OutputFolderError
from identilens.runs.bucket import bucket_of
from identilens.runs.manifest import TEMPORARY, Manifest, manifest_of

_FULL_DISK = (
    "os error",
    "no space",
    "file write failed",
    "file too large",
    "errno",
    "unexpected pos",
)
"""Words in the messages of libraries that raise their own errors for failures of the file system."""


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it: readers see the whole file or none.

    Raises:
        OutputFolderError: If the disk is full, or the folder cannot be written or was removed; ``path`` is unchanged.
    """
    temporary, manifest = _temporary(path), manifest_of(path)
    with translated_write_errors(path):
        if manifest is not None:
            manifest.check_writable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Created here, so that its permissions follow the umask.
            temporary.touch(exist_ok=False)
            permissions = temporary.stat().st_mode
            write(temporary)
            temporary.chmod(permissions)
            _put_in_place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_folder(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary folder beside ``path``, then rename each of its files into ``path``.

    Raises:
        OutputFolderError: As `write_atomically`.
    """
    temporary, manifest = _temporary(path), manifest_of(path)
    with translated_write_errors(path):
        if manifest is not None:
            manifest.check_writable(path / "file")
        try:
            temporary.mkdir(parents=True)
            (probe := temporary / "probe").touch()
            permissions = probe.stat().st_mode
            probe.unlink()
            write(temporary)
            for file in sorted(entry for entry in temporary.rglob("*") if entry.is_file()):
                file.chmod(permissions)
                target = path / file.relative_to(temporary)
                target.parent.mkdir(parents=True, exist_ok=True)
                _put_in_place(file, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")


def _put_in_place(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    manifest = manifest_of(path)
    if manifest is not None:
        manifest.add(path.relative_to(manifest.root).as_posix())
    temporary.replace(path)
    if manifest is not None and (bucket := bucket_of(path)) is not None:
        bucket.upload(path)


def take_over(manifest: Manifest, files: Iterable[Path]) -> None:
    """List files that another library has written into a run's folder, and upload them for a run in object storage."""
    files = list(files)
    manifest.add(*(file.relative_to(manifest.root).as_posix() for file in files))
    if (bucket := bucket_of(manifest.root)) is not None:
        for file in files:
            bucket.upload(file)


def as_path(given: str | Path) -> Path:
    """Return the path of a file or folder to write; raises InputError for a value of another kind."""
    if not isinstance(given, str | Path):
        raise InputError(f"expected the path of a file or folder; got {given!r:.80}.")
    return Path(given)


@contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """Turn failures of the file system into an `OutputFolderError` with a remedy."""
    try:
        yield
    except OutputFolderError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and (
            "null byte" in str(error) or isinstance(error, UnicodeEncodeError)
        ):
            raise InputError(
                f"{str(path)!r} cannot be the name of a file ({error}). Pass another."
            ) from error
        system = isinstance(error, OSError)
        if not system and not any(phrase in str(error).lower() for phrase in _FULL_DISK):
            raise
        raise OutputFolderError(
            f"could not write {path}: {getattr(error, 'strerror', None) or error}. "
            "Finished parts are safe; "
            f"free some space{' or fix the permissions' if system else ''}, then run the same command with resume=True."
        ) from error


def table_bytes(table: pl.DataFrame) -> bytes:
    """Return the content of a parquet file."""
    content = io.BytesIO()
    table.write_parquet(content)
    return content.getvalue()


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a parquet file atomically."""
    # Polars does not write into the file: on a full disk its error would speak of a file out of specification.
    write_bytes(path, table_bytes(table))


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically, readable by people."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, sort_keys=False) + "\n")


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file."""
    seen: set[int] = set()
    contiguous: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        # The format does not allow tensors that share memory.
        memory = copy.untyped_storage().data_ptr()
        contiguous[name] = copy.clone() if memory in seen else copy
        seen.add(memory)
    return save(contiguous, dict(metadata or {}))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    write_bytes(path, tensor_bytes(tensors))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically; characters that UTF-8 cannot encode are escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))
