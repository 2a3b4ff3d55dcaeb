"""The folder of a run: parts are written one by one, and an interrupted run is resumed."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
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
        return tensor_bytes({**stored, **self.matrices}, tokens=json.dumps(self.tokens))

    @classmethod
    def read(cls, file: Path) -> "Output":
        """Return the tables and tokens of a part from its file."""
        tables = {}
        with errors_naming(file), safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - a file cannot be iterated
                if key.startswith(TABLE):
                    content = BytesIO(tensors.get_tensor(key).numpy().tobytes())
                    tables[key.removeprefix(TABLE)] = pl.read_parquet(content)
            tokens = json.loads(tensors.metadata()["tokens"])
        return cls(tables, {}, {int(text): names for text, names in tokens.items()})

    @classmethod
    def joined(cls, outputs: Sequence["Output"]) -> "Output":
        """Return the outputs of several parts as one."""
        return cls(
            {
                name: pl.concat([part.tables[name] for part in outputs])
                for name in outputs[0].tables
            },
            {name: tensor for part in outputs for name, tensor in part.matrices.items()},
            {text: names for part in outputs for text, names in part.tokens.items()},
        )


class RunFolder:
    """The folder of one run. A part is one file, so that a killed run continues after its last complete part.

    A context manager: inside it, every file that is written into the folder is listed in its manifest. On exit the
    lock is released.

    Args:
        path: The folder.
        record: Provenance of the run.
    """

    def __init__(self, path: Path, record: Record) -> None:
        self.path, self.record, self.manifest = path, record, Manifest(path)
        self.finished = False
        self._stack = ExitStack()

    @classmethod
    def open(
        cls, path: Path, record: Record, *, resume: bool = False, overwrite: bool = False
    ) -> "RunFolder":
        """Return the locked folder of a new or interrupted run, or of a finished one.

        Args:
            path: The folder; it is created if it does not exist.
            record: Provenance of the run.
            resume: Continue the same run after an interruption.
            overwrite: Delete the previous run in the folder: the files that its manifest lists, and no others.

        Raises:
            OutputFolderError: If the folder contains another run, or the same one and ``resume`` is not set, or files
                that are not a run; if another process writes to it, or it cannot be written.
        """
        with translated_write_errors(path), ExitStack() as stack:
            path.mkdir(parents=True, exist_ok=True)
            files = {file.name for file in path.iterdir()}
            # A process that was killed at once leaves its lock alone.
            if MANIFEST not in files and files - {LOCK}:
                raise OutputFolderError(
                    f"{path} contains files and no {MANIFEST}: no run of identilens, or one whose files are not known. "
                    "Choose another folder, so that nothing is overwritten."
                )
            stack.enter_context(acquire_lock(path))
            folder = cls(path, record)
            previous = None if overwrite else folder._previous()
            if previous is not None:
                folder._check_same(previous, resume)
                folder.finished = previous["finished"]
            folder._prepare(new=previous is None)
            folder._stack = stack.pop_all()
        return folder

    def __enter__(self) -> "RunFolder":
        self._stack.enter_context(recording(self.manifest))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has(self, part: int) -> bool:
        """Return whether a part of this run is complete."""
        return f"{_PARTS}{self._part(part).name}" in self.manifest.names

    def write_part(self, part: int, content: bytes, files: Mapping[str, bytes]) -> None:
        """Write the output of a part, as `Output.content` returns it, after files that it wrote elsewhere."""
        for name, written in files.items():
            write_bytes(self.path / name, written)
        write_bytes(self._part(part), content)

    def read(self, parts: Sequence[int]) -> Output:
        """Return the output of complete parts as one; its matrices are read when they are accessed."""
        files = [self._part(part) for part in parts]
        return replace(Output.joined([*map(Output.read, files)]), matrices=StoredMatrices(files))

    def finish(self, output: Output) -> None:
        """Write the output of the whole run, mark the run as finished, and remove its parts."""
        write_matrices(self.path, output.matrices, output.tokens)
        for name, table in output.tables.items():
            write_table(self.path / f"{name}.parquet", table)
        write_json(self.path / PROVENANCE, {**self.record, "finished": True})
        self.finished = True
        self._prepare()

    def _previous(self) -> Record | None:
        """Return the provenance of the run in the folder, or None if it has none, or one of which nothing is lost.

        Raises:
            OutputFolderError: If the provenance is damaged or missing.
        """
        record = read_record(self.path)
        files = {name for name in self.manifest.names if (self.path / name).exists()}
        if record is None and files:
            raise OutputFolderError(
                f"{self.path / PROVENANCE} is missing, but {MANIFEST} lists other files of a run. Restore it from a "
                "copy, choose another folder, or pass overwrite=True to delete the run."
            )
        # A run that ended before its first part has these files only.
        if record is not None and not record["finished"] and files <= {PROVENANCE, REQUEST}:
            return None
        return record

    def _prepare(self, *, new: bool = False) -> None:
        """Write the provenance of a run that is not finished, whose folder is known as a run's at every moment.

        The parts of a finished run are removed.
        """
        if self.finished:
            self.manifest.remove(_PARTS)
            self.manifest.tidy()
            return
        self.manifest.remove_unfinished()
        if new:
            self.manifest.remove(keep=(PROVENANCE,))
            # What could not be removed, such as behind a link, belongs to no run.
            self.manifest.names = {}
            self.manifest.file.touch()
        with recording(self.manifest):
            write_json(self.path / PROVENANCE, {**self.record, "finished": False})
        self.manifest.tidy()

    def _check_same(self, previous: Record, resume: bool) -> None:
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
            raise OutputFolderError(
                f"{self.path} has a run that was started with other versions: {changes}. Install those again, or pass "
                "overwrite=True to start again."
            )

    def _part(self, part: int) -> Path:
        return self.path / _PARTS / f"{part:06d}.safetensors"


def acquire_lock(folder: Path) -> AbstractContextManager[Any]:
    """Lock a run's folder, until the returned context is left.

    Raises:
        OutputFolderError: If another process holds it, or the folder cannot be written.
    """
    with translated_write_errors(folder):
        try:
            held = FileLock(folder / LOCK).acquire(blocking=False)
        except Timeout:
            raise OutputFolderError(
                f"another run is writing to {folder}. Wait until it ends, or choose another folder."
            ) from None
    return held
