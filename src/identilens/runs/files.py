"""The files of a run: each is written atomically, after ``manifest.txt`` has listed its name."""

import io
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
import torch
from safetensors.torch import save
from torch import Tensor

from identilens.errors import InputError, OutputFolderError

MANIFEST = "manifest.txt"
LOCK = ".lock"
PROVENANCE = "provenance.json"
TEMPORARY = ".identilens-tmp"
"""End of the name of a file that is being written."""

_LONGEST_NAME = 255
"""Bytes of a file's name on common file systems."""

_CURRENT: ContextVar["Manifest | None"] = ContextVar("manifest", default=None)
_FULL_DISK = (
    "os error",
    "no space",
    "file write failed",
    "file too large",
    "errno",
    "unexpected pos",
)
"""Words in the messages of libraries that raise their own errors for failures of the file system."""


class Manifest:
    """The names of a run's files, relative to its folder; no other file is removed.

    A name that ends in a slash is a subfolder with a run of its own.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.file = root, root / MANIFEST
        self._names: dict[str, None] | None = None

    @property
    def names(self) -> Collection[str]:
        """The names, in the order in which they were listed."""
        if self._names is None:
            content = b""
            with suppress(OSError):
                content = self.file.read_bytes() if self.file.is_file() else b""
            lines = content.decode("utf-8", "replace").split("\n")[:-1]
            parts = {line: PurePosixPath(line).parts for line in lines if "\0" not in line}
            # Only what stands inside the run's folder.
            self._names = {
                line: None
                for line, own in parts.items()
                if own and own[0] != "/" and ".." not in own
            }
        return self._names.keys()

    def under(self, prefix: str) -> list[str]:
        """Return the names with a prefix, sorted."""
        return sorted(name for name in self.names if name.startswith(prefix))

    def reread(self) -> None:
        """Read the file again at the next access, because another process may have written to it."""
        self._names = None

    def add(self, *names: str) -> None:
        """List further names."""
        if all(name in self.names for name in names):
            return
        self.reread()
        with self.file.open("ab+") as stream:
            stream.seek(0)
            # A line that was cut off by a crash is removed.
            stream.truncate(stream.read().rfind(b"\n") + 1)
            new = (f"{name}\n" for name in names if name not in self.names)
            stream.write("".join(new).encode())
        self.reread()

    def remove(self, prefix: str = "", keep: Collection[str] = ()) -> None:
        """Remove the run's files whose names have a prefix, and folders that are then empty; nothing else."""
        self.reread()
        paths = self._paths(name for name in self.under(prefix) if name not in keep)
        for path in paths:
            with suppress(OSError):
                path.unlink()
        folders = {folder for path in paths for folder in self._folders(path)}
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            with suppress(OSError):
                folder.rmdir()

    def tidy(self) -> None:
        """Reduce the manifest to the files that exist; the provenance comes last, so that a cut manifest lacks it."""
        self.reread()
        present = [name for name in self.names if (self.root / name).exists()]
        present.sort(key=lambda name: name == PROVENANCE)
        # Always the same name: a process that is killed here may have finished its run.
        temporary = self.root / f".{MANIFEST}{TEMPORARY}"
        temporary.unlink(missing_ok=True)
        temporary.write_text("".join(f"{name}\n" for name in present), encoding="utf-8")
        temporary.replace(self.file)
        self.reread()

    def remove_unfinished(self) -> None:
        """Remove temporary files and folders of a killed process; those of joined runs stay."""
        for path in list(self.root.rglob(f"*{TEMPORARY}")):
            if not any((folder / MANIFEST).exists() for folder in self._folders(path)):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def check_writable(self, path: Path) -> None:
        """Raise OutputFolderError if the folder was removed during the run, or a link in it leads elsewhere."""
        self._refuse_links(path)
        if not self.file.is_file():
            raise OutputFolderError(
                f"{self.root} was removed or emptied while the run was writing to it. Its files are lost; "
                "run the same command again."
            )

    def _paths(self, names: Iterable[str]) -> list[Path]:
        """Return the files of names, with those of joined runs; raises if a link would lead out of the folder."""
        paths = []
        for name in names:
            path = self.root / name
            if name.endswith("/"):
                joined = Manifest(path)
                self._refuse_links(joined.file)
                paths += [*joined._paths(joined.names), joined.file, path / LOCK]
            else:
                self._refuse_links(path)
                paths.append(path)
        return paths

    def _folders(self, path: Path) -> list[Path]:
        """Return the folders between the run's folder and a file."""
        return [folder for folder in path.parents if self.root in folder.parents]

    def _refuse_links(self, path: Path) -> None:
        for link in (self.file, *self._folders(path)):
            if link.is_symlink():
                raise OutputFolderError(
                    f"{link} is a symbolic link; a run writes and deletes only in its own folder. Remove the link, or "
                    "choose another folder."
                )


@contextmanager
def recording(manifest: Manifest | None) -> Iterator[None]:
    """List every file that is written into the run's folder inside this context; None: list no files."""
    token = _CURRENT.set(manifest)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def manifest_of(path: Path) -> Manifest | None:
    """Return the current manifest if its folder contains a path."""
    manifest = _CURRENT.get()
    return manifest if manifest is not None and path.is_relative_to(manifest.root) else None


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it: readers see the whole file or none.

    Raises:
        OutputFolderError: If the disk is full, or the folder cannot be written or was removed; ``path`` is unchanged.
    """
    with translated_write_errors(path):
        if path.exists() and not path.is_file():
            raise OutputFolderError(
                f"{path} is a folder or a device, and not replaced by a file. Choose another name."
            )
        temporary = _temporary(path)
        if (manifest := manifest_of(path)) is not None:
            manifest.check_writable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            _put_in_place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_folder(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary folder beside ``path``, then rename each of its files into ``path``.

    Raises:
        OutputFolderError: As `write_atomically`.
    """
    temporary = _temporary(path)
    with translated_write_errors(path):
        if (manifest := manifest_of(path)) is not None:
            manifest.check_writable(path / MANIFEST)
        try:
            temporary.mkdir(parents=True)
            permissions = temporary.stat().st_mode & 0o666  # as the umask has it
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


def as_path(given: str | Path) -> Path:
    """Return the path of a file or folder; raises InputError for what cannot be one, such as 6,000 characters."""
    try:
        valid = isinstance(given, str | Path) and b"\0" not in os.fsencode(given)
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise InputError(
            f"expected the path of a file or folder, without null characters; got {given!r:.80}."
        )
    longest = max(map(len, os.fsencode(str(given)).split(b"/")))
    if longest > _LONGEST_NAME:
        raise OutputFolderError(
            f"expected the path of a file or folder; got {given!s:.40}…, a name of {longest:,} bytes; file systems "
            f"take {_LONGEST_NAME}. Choose another."
        )
    return Path(given)


@contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """Turn failures of the file system into an `OutputFolderError` with a remedy."""
    try:
        yield
    except OutputFolderError:
        raise
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) or "null byte" in str(error):
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
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file."""
    # The format does not allow tensors that share memory.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return save(copies, dict(metadata or {}))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    write_bytes(path, tensor_bytes(tensors))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically; characters that UTF-8 cannot encode are escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))
