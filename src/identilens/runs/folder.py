"""The folder of a run: parts are written one by one, and an interrupted run is resumed."""

import json
import os
import platform
from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import torch
from filelock import FileLock, Timeout
from safetensors import safe_open
from torch import Tensor

from identilens.errors import OutputFolderError
from identilens.runs.files import (
    LOCK,
    MANIFEST,
    PROVENANCE,
    TEMPORARY,
    Manifest,
    recording,
    table_bytes,
    tensor_bytes,
    translated_write_errors,
    write_bytes,
    write_json,
    write_table,
)
from identilens.runs.matrices import TABLE, StoredMatrices, Tokens, write_matrices
from identilens.runs.provenance import Record, differences, subject, version_changes
from identilens.runs.reading import errors_naming, read_record
from identilens.runs.request import NAME as REQUEST
from identilens.runs.tables import Tables

_PARTS = "parts/"
_FILES = 256
"""Files of parts that are read together: reading tables one by one takes three times as long."""


@dataclass(frozen=True)
class Output:
    """The output of one part of a study: tables as in the result's schema, matrices by `MatrixKey`, and tokens."""

    tables: Tables
    matrices: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Mapping[int, Tokens] = field(default_factory=dict)

    def content(self) -> bytes:
        """Return it as the content of a file."""
        stored = {
            f"{TABLE}{name}": torch.frombuffer(bytearray(table_bytes(table)), dtype=torch.uint8)
            for name, table in self.tables.items()
        }
        return tensor_bytes({**stored, **self.matrices}, {"tokens": json.dumps(self.tokens)})


class RunFolder:
    """The folder of one run. A part is one file, so that a killed run continues after its last complete part.

    A context manager: inside it, every file that is written into the folder is listed in its manifest. On exit the
    lock is released.

    Args:
        path: The folder.
        record: Provenance of the run.
        manifest: Its manifest.
    """

    def __init__(self, path: Path, record: Record, manifest: Manifest | None = None) -> None:
        self.path, self.record, self.manifest = path, record, manifest or Manifest(path)
        self.finished = False
        self._stack = ExitStack()

    @classmethod
    def open(
        cls,
        path: Path,
        record: Record,
        *,
        resume: bool = False,
        overwrite: bool = False,
        allow_version_change: bool = False,
    ) -> "RunFolder":
        """Return the locked folder of a new or interrupted run, or of a finished one.

        Args:
            path: The folder; it is created if it does not exist.
            record: Provenance of the run.
            resume: Continue the same run after an interruption.
            overwrite: Delete the previous run in the folder: the files that its manifest lists, and no others.
            allow_version_change: Continue a run that was started with other versions of the libraries.

        Raises:
            OutputFolderError: If the folder contains another run, or the same one and ``resume`` is not set, or files
                that are not a run; if another process writes to it, or it cannot be written.
        """
        folder = cls(path, record)
        with ExitStack() as stack:
            previous = folder._previous(overwrite)
            finished = previous is not None and previous["finished"] and not overwrite
            if not finished or folder.manifest.under(_PARTS):
                with translated_write_errors(path):
                    str(path).encode()  # libraries that write a run take names in UTF-8 only
                    path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(acquire_lock(path))
            folder.manifest.reread()
            previous = folder._previous(overwrite)
            if previous is not None and not overwrite:
                folder._check_same(previous, resume, allow_version_change)
                folder.finished = previous["finished"]
            folder._prepare(new=previous is None or overwrite)
            folder._stack = stack.pop_all()
        return folder

    def __enter__(self) -> "RunFolder":
        self._stack.enter_context(recording(self.manifest))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plan(self, parts: int) -> None:
        """List the files of all parts before the first one is written."""
        self.manifest.add(*(f"{_PARTS}{self._part(part).name}" for part in range(parts)))

    def has(self, part: int) -> bool:
        """Return whether a part is complete."""
        file = self._part(part)
        try:
            with errors_naming(file), safe_open(file, framework="pt"):
                return True
        except OutputFolderError:
            return False

    def write_part(self, part: int, content: bytes) -> None:
        """Write the output of one part, as `Output.content` returns it."""
        write_bytes(self._part(part), content)

    def take(
        self, part: int, content: bytes, names: Sequence[str], files: Mapping[str, bytes]
    ) -> None:
        """Write a part that was computed elsewhere, with the files that it wrote there."""
        self.manifest.add(*names)
        with recording(None):  # the names are listed
            for name, written in files.items():
                write_bytes(self.path / name, written)
        self.write_part(part, content)

    def read_parts(self, parts: Sequence[int]) -> Tables:
        """Return the tables of complete parts, joined."""
        frames: dict[str, list[pl.DataFrame]] = {}
        for start in range(0, len(parts), _FILES):
            contents: dict[str, list[bytes]] = {}
            files = [self._part(part) for part in parts[start : start + _FILES]]
            for file in files:
                with errors_naming(file), safe_open(file, framework="pt") as tensors:
                    for key in tensors.keys():  # noqa: SIM118 - a file cannot be iterated
                        if key.startswith(TABLE):
                            content = tensors.get_tensor(key).numpy().tobytes()
                            contents.setdefault(key.removeprefix(TABLE), []).append(content)
            for name, tables in contents.items():
                with errors_naming(files[0]):
                    frames.setdefault(name, []).append(pl.read_parquet(list(map(BytesIO, tables))))
        return {name: pl.concat(tables) for name, tables in frames.items()}

    def finish(self, parts: int, last: Output) -> None:
        """Write the tables of the whole run and all matrices, mark the run as finished, and remove its parts."""
        files = [self._part(part) for part in range(parts)]
        tokens: dict[int, Tokens] = {}
        for file in files:
            with errors_naming(file), safe_open(file, framework="pt") as tensors:
                words = json.loads(tensors.metadata()["tokens"])
                tokens |= {int(text): names for text, names in words.items()}
        texts = [f"matrices/text{text}.{end}" for text in tokens for end in ("json", "safetensors")]
        self.manifest.add(*texts, *(f"{name}.parquet" for name in last.tables))
        matrices = ChainMap(dict(last.matrices), StoredMatrices(files))  # pyright: ignore[reportArgumentType] read only
        write_matrices(self.path, matrices, {**tokens, **last.tokens})
        for name, table in last.tables.items():
            write_table(self.path / f"{name}.parquet", table)
        write_json(self.path / PROVENANCE, {**self.record, "finished": True})
        self.finished = True
        self._prepare()

    def _previous(self, overwrite: bool) -> Record | None:
        """Return the provenance in the folder, or None; damage does not matter if the run is to be deleted.

        Raises:
            OutputFolderError: If the folder contains files that are not a run, or a run whose files are not known.
        """
        self.manifest.reread()
        names = self.manifest.names
        try:
            previous = read_record(self.path)
        except OutputFolderError:
            if not overwrite or PROVENANCE not in names:
                raise
            return {**self.record, "finished": False}
        if previous is not None and PROVENANCE not in names:
            raise OutputFolderError(
                f"{self.path} contains a run whose {MANIFEST} is missing or damaged, so its files cannot be "
                "identified. Choose another folder."
            )
        files = [name for name in names if (self.path / name).exists()]
        if previous is not None and not previous["finished"] and {*files} <= {PROVENANCE, REQUEST}:
            return None  # it ended before its first part, so that nothing of it is lost
        if previous is not None or not self.path.exists():
            return previous
        # A run that was killed while it started leaves only known names, and none of a result.
        if files and not overwrite:
            raise OutputFolderError(
                f"{self.path / PROVENANCE} is missing or no file, but {MANIFEST} lists other files of a run. Restore "
                "it from a copy, choose another folder, or pass overwrite=True to delete the run."
            )
        known = {MANIFEST, LOCK, *(name.split("/")[0] for name in names)}
        present = [self.path.name]
        if self.path.is_dir():
            with translated_write_errors(self.path):
                present = [file.name for file in self.path.iterdir()]
        if any(name not in known and not name.endswith(TEMPORARY) for name in present):
            raise OutputFolderError(
                f"{self.path} exists and contains no run of identilens. Choose another folder, so that nothing is "
                "overwritten."
            )
        return None

    def _prepare(self, *, new: bool = False) -> None:
        """Write the provenance of a run that is not finished, whose folder is known as a run's at every moment.

        The parts of a finished run are removed.
        """
        with translated_write_errors(self.path):
            if self.finished:
                if self.manifest.under(_PARTS):
                    self.manifest.remove(_PARTS)
                    self.manifest.tidy()
                return
            self.manifest.remove_unfinished()
            if new:
                self.manifest.remove(keep=(PROVENANCE,))
                self.manifest.file.touch()
            with recording(self.manifest):
                write_json(self.path / PROVENANCE, {**self.record, "finished": False})
            if new:
                self.manifest.tidy()

    def _check_same(self, previous: dict[str, Any], resume: bool, allowed: bool) -> None:
        if previous["fingerprint"] != self.record["fingerprint"]:
            raise OutputFolderError(
                f"{self.path} contains another run ({previous['analysis']} of {subject(previous)}): "
                f"{differences(previous, self.record)}. "
                "Choose another folder, or pass overwrite=True to delete the previous run."
            )
        if not resume:
            state = "finished" if previous["finished"] else "interrupted"
            raise OutputFolderError(
                f"{self.path} already contains this run, {state}. Pass resume=True to continue it, or overwrite=True "
                "to start again."
            )
        changes = version_changes(previous, self.record)
        if changes and not previous["finished"]:
            if not allowed:
                raise OutputFolderError(
                    f"{self.path} has a run that was started with other versions: {changes}. Install those again, or "
                    "pass allow_version_change=True to continue with the present ones; both are then recorded."
                )
            now = {"libraries": self.record["libraries"], "python": self.record["python"]}
            self.record = {**previous, "later_versions": [*previous.get("later_versions", []), now]}
        elif "later_versions" in previous:
            self.record = previous

    def _part(self, part: int) -> Path:
        return self.path / _PARTS / f"{part:06d}.safetensors"


def acquire_lock(folder: Path) -> AbstractContextManager[Any]:
    """Lock a run's folder, until the returned context is left.

    Raises:
        OutputFolderError: If another process holds it, or the folder cannot be written.
    """
    file = folder / LOCK
    if file.is_symlink():
        raise OutputFolderError(f"{file} is a symbolic link. Remove it, or choose another folder.")
    with translated_write_errors(file):
        try:
            held = FileLock(file).acquire(blocking=False)
        except Timeout:
            words = file.read_text(encoding="utf-8", errors="replace")
            owner = words or "a process that has just begun"
            raise OutputFolderError(
                f"another run is writing to {folder} ({owner}). Wait until it ends, or choose another folder."
            ) from None
        # The owner's name is only information: on a full disk the run goes on without it.
        with suppress(OSError):
            file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    return held
