"""The files of a run: each is written atomically, after ``manifest.txt`` has listed its name."""

import io
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from identilens.errors import OutputFolderError

MANIFEST = "manifest.txt"
LOCK = ".lock"
PROVENANCE = "provenance.json"
TEMPORARY = ".identilens-tmp"
"""End of the name of a file that is being written."""

_CURRENT: ContextVar["Manifest | None"] = ContextVar("manifest", default=None)


class Manifest:
    """The names of a run's files, relative to its folder; no other file is removed.

    A name that ends in a slash is a subfolder with a run of its own.

    Args:
        root: The folder.

    Attributes:
        names: The names, in the order in which they were listed.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.file = root, root / MANIFEST
        known = self.file.is_file()
        content = self.file.read_text(encoding="utf-8", errors="replace") if known else ""
        # A line that was cut off by a crash counts for nothing.
        lines = content.split("\n")[:-1]
        self.names: dict[str, None] = dict.fromkeys(lines)

    def under(self, prefix: str) -> list[str]:
        """Return the names with a prefix, sorted."""
        return sorted(name for name in self.names if name.startswith(prefix))

    def add(self, name: str) -> None:
        """List a further name."""
        if name not in self.names:
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(f"{name}\n")
            self.names[name] = None

    def remove(self, prefix: str = "", keep: Collection[str] = ()) -> None:
        """Remove the run's files whose names have a prefix, and folders that are then empty.

        What lies outside of the folder, such as behind a link, stays.
        """
        root = self.root.resolve()
        for name in self.under(prefix):
            path = self.root / name
            if name in keep or root not in path.resolve().parents:
                continue
            if name.endswith("/"):
                joined = Manifest(path)
                joined.remove()
                joined.file.unlink(missing_ok=True)
                path = path / LOCK
            with suppress(OSError):
                path.unlink()
                for folder in path.parents:
                    if folder == self.root:
                        break
                    folder.rmdir()

    def tidy(self) -> None:
        """Reduce the manifest to the files that exist; the provenance comes last, so that a cut manifest lacks it."""
        present = [name for name in self.names if (self.root / name).exists()]
        present.sort(key=lambda name: name == PROVENANCE)
        self.names = dict.fromkeys(present)
        # Always the same name: a process that is killed here may have finished its run.
        temporary = self.root / f".{MANIFEST}{TEMPORARY}"
        temporary.unlink(missing_ok=True)
        temporary.write_text("".join(f"{name}\n" for name in present), encoding="utf-8")
        temporary.replace(self.file)

    def remove_unfinished(self) -> None:
        """Remove temporary files of a killed process; those of joined runs stay."""
        joined = [file.parent for file in self.root.glob(f"*/**/{MANIFEST}")]
        for path in list(self.root.rglob(f"*{TEMPORARY}")):
            if not any(folder in path.parents for folder in joined):
                path.unlink(missing_ok=True)


@contextmanager
def recording(manifest: Manifest) -> Iterator[None]:
    """List every file that is written into the run's folder inside this context."""
    token = _CURRENT.set(manifest)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def list_in_manifest(path: Path, end: str = "") -> None:
    """List a file, or with "/" a folder, in the current manifest, if it lies in the manifest's folder."""
    manifest = _CURRENT.get()
    if manifest is not None and path.is_relative_to(manifest.root):
        manifest.add(path.relative_to(manifest.root).as_posix() + end)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a temporary file beside ``path``, then rename it: readers see the whole file or none.

    Raises:
        OutputFolderError: If the disk is full or the folder cannot be written; ``path`` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")
    with translated_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            list_in_manifest(path)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_folder(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary folder, then write each of its files into ``path``.

    Raises:
        OutputFolderError: As `write_bytes`.
    """
    with translated_write_errors(path), TemporaryDirectory(prefix="identilens-") as temporary:
        write(Path(temporary))
        for name, content in files_of(Path(temporary)).items():
            write_bytes(path / name, content)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files of a folder but locks, by their paths in it."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != LOCK
    }


@contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """Turn failures of the file system into an `OutputFolderError` with a remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise OutputFolderError(
            f"could not write {path}: {getattr(error, 'strerror', None) or error}. Finished parts are safe; free some "
            "space or fix the permissions, then run the same command with resume=True."
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
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def tensor_bytes(tensors: Mapping[str, Tensor], **metadata: str) -> bytes:
    """Return the content of a safetensors file."""
    # The format does not allow tensors that share memory.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return save(copies, metadata)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    write_bytes(path, tensor_bytes(tensors))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically; characters that UTF-8 cannot encode are escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))
