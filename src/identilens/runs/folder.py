"""The folder of a run: parts are written one by one, and an interrupted run is resumed."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
from torch import Tensor

from identilens.errors import OutputFolderError
from identilens.runs.differences import described, differences, version_changes
from identilens.runs.files import translated_write_errors, write_json, write_table, write_tensors
from identilens.runs.lock import hold
from identilens.runs.manifest import LOCK, NAME, PROVENANCE, TEMPORARY, Manifest, listed
from identilens.runs.matrices import StoredMatrices, Tokens, write_matrices
from identilens.runs.mirror import together
from identilens.runs.reading import check_file, read_json, read_record, read_table, read_tables
from identilens.runs.stored import fetch

_PARTS = "parts/"


class RunFolder:
    """The folder of one run. A part is complete or absent, so that a killed run continues after its last complete part.

    A context manager: inside it, every file that is written into the folder is added to its manifest. On exit the lock
    is released.

    Args:
        path: The folder; it is created if it does not exist.
        record: Provenance of the run.
        resume: Continue the same run after an interruption.
        overwrite: Delete the previous run in the folder: the files that its manifest lists, and no others.
        allow_version_change: Continue a run that was started with other versions of the libraries.
        leads: Whether this process locks the folder. Workers of the same run do not.

    Raises:
        OutputFolderError: If the folder contains another run, or the same one and ``resume`` is not set, or files that
            are not a run; if another process writes to it, or it cannot be written.
    """

    def __init__(
        self, path: Path, record: dict[str, Any], *, resume: bool = False, overwrite: bool = False,
        allow_version_change: bool = False, leads: bool = True,
    ) -> None:  # fmt: skip
        self.path, self.record, self.manifest = path, record, Manifest(path)
        self._stack = ExitStack()
        self._complete: set[int] = set()
        fetch(path, parts=leads)
        previous = self._read_previous(overwrite)
        if previous is None:
            self._refuse_foreign_files(overwrite)
        if leads and (overwrite or previous is None or not previous["finished"] or self.manifest.names(_PARTS)):
            with translated_write_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(hold(path))
            fetch(path)
            previous = self._read_previous(overwrite)
        with self._stack:
            self._take(previous, resume=resume, overwrite=overwrite, allowed=allow_version_change, leads=leads)
            self._stack = self._stack.pop_all()

    def __enter__(self) -> "RunFolder":
        self._stack.enter_context(listed(self.manifest))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has(self, part: int) -> bool:
        """Return whether a part is complete and unchanged since it was written."""
        if part not in self._complete and self._marker(part).is_file():
            try:
                self._check_part(part)
            except OutputFolderError:
                return False
            self._complete.add(part)
        return part in self._complete

    def write_part(
        self, part: int, tables: Mapping[str, pl.DataFrame], matrices: Mapping[str, Tensor] | None = None,
        tokens: Mapping[int, Tokens] | None = None,
    ) -> None:  # fmt: skip
        """Write the output of one part; the part is complete once its marker is written, which comes last."""
        names = {
            text: {sequence: list(words) for sequence, words in one.items()} for text, one in (tokens or {}).items()
        }
        with together(self.path):
            for name, table in tables.items():
                write_table(self._part(part, name), table)
            if matrices:
                write_tensors(self._matrices(part), matrices)
            write_json(self._marker(part), {"tables": sorted(tables), "matrices": bool(matrices), "tokens": names})

    def read_part(self, part: int) -> dict[str, pl.DataFrame]:
        """Return the tables of a complete part."""
        names = read_json(self.manifest, self._marker(part))["tables"]
        return {name: read_table(self.manifest, self._part(part, name)) for name in names}

    def read_parts(self, parts: Sequence[int]) -> dict[str, pl.DataFrame]:
        """Return the tables of complete parts, joined."""
        names = read_json(self.manifest, self._marker(parts[0]))["tables"]
        return {name: read_tables(self.manifest, [self._part(part, name) for part in parts]) for name in names}

    def finish(
        self, parts: int, tables: Mapping[str, pl.DataFrame], matrices: Mapping[str, Tensor],
        tokens: Mapping[int, Tokens],
    ) -> None:  # fmt: skip
        """Write the tables of the whole run and all matrices, mark the run as finished, and remove its parts."""
        markers = [read_json(self.manifest, self._marker(part)) for part in range(parts)]
        files = [self._matrices(part) for part, marker in enumerate(markers) if marker["matrices"]]
        stored = StoredMatrices(self.manifest, files)
        names = {int(text): words for marker in markers for text, words in marker["tokens"].items()}
        with together(self.path):
            write_matrices(self.path, ChainMap(dict(matrices), stored), {**names, **tokens})  # pyright: ignore[reportArgumentType] read only
            for name, table in tables.items():
                write_table(self.path / f"{name}.parquet", table)
            write_json(self.path / PROVENANCE, {**self.record, "finished": True})
        self.finished = True
        self._tidy()

    def _read_previous(self, overwrite: bool) -> dict[str, Any] | None:
        """Return the provenance in the folder, or None; damage does not matter if the run is to be deleted."""
        self.manifest.reread()
        try:
            previous = read_record(self.path)
        except OutputFolderError:
            if not overwrite or PROVENANCE not in self.manifest.digests:
                raise
            previous = {**self.record, "finished": False}
        if previous is not None and PROVENANCE not in self.manifest.digests:
            raise OutputFolderError(
                f"{self.path} contains a run whose {NAME} is missing or damaged, so its files cannot be "
                "identified. Choose another folder."
            )
        return previous

    def _refuse_foreign_files(self, overwrite: bool) -> None:
        """Refuse a folder with files of others, or of a run whose provenance is lost.

        A run that was killed while it started leaves only known names, and none of a result.
        """
        listed_files = self.manifest.digests.keys() - {PROVENANCE}
        if not overwrite and any((self.path / name).exists() for name in listed_files):
            raise OutputFolderError(
                f"{self.path / PROVENANCE} is missing or no file, but {NAME} lists other files of a run. Restore it "
                "from a copy, choose another folder, or pass --overwrite to delete the run."
            )
        known = {NAME, LOCK, *(name.split("/")[0] for name in self.manifest.digests)}
        with translated_write_errors(self.path):
            foreign = self.path.exists() and (
                not self.path.is_dir()
                or any(file.name not in known and not file.name.endswith(TEMPORARY) for file in self.path.iterdir())
            )
        if foreign:
            raise OutputFolderError(
                f"{self.path} exists and contains no run of identilens. Choose another folder, so that nothing is "
                "overwritten."
            )

    def _take(
        self, previous: dict[str, Any] | None, *, resume: bool, overwrite: bool, allowed: bool, leads: bool
    ) -> None:  # fmt: skip
        if previous is not None and not overwrite:
            self._check_same(previous, resume, allowed)
        self.finished = previous is not None and not overwrite and previous["finished"]
        if not leads:
            return
        with translated_write_errors(self.path):
            if previous is None or overwrite:
                self._begin()
            elif not self.finished:
                self.manifest.remove_unfinished()
                with listed(self.manifest):
                    write_json(self.path / PROVENANCE, {**self.record, "finished": False})
            elif self.manifest.names(_PARTS):
                self._tidy()

    def _begin(self) -> None:
        """Delete the previous run and write the provenance; at every moment the folder is known as that of a run."""
        self.manifest.remove_unfinished()
        self.manifest.remove(keep=(PROVENANCE,))
        self.manifest.file.touch()
        with listed(self.manifest):
            write_json(self.path / PROVENANCE, {**self.record, "finished": False})
        self.manifest.tidy()

    def _check_same(self, previous: dict[str, Any], resume: bool, allowed: bool) -> None:
        if previous["fingerprint"] != self.record["fingerprint"]:
            raise OutputFolderError(
                f"{self.path} contains another run ({described(previous)}): {differences(previous, self.record)}. "
                "Choose another folder, or pass --overwrite to delete the previous run."
            )
        if not resume:
            state = "finished" if previous["finished"] else "interrupted"
            raise OutputFolderError(
                f"{self.path} already contains this run, {state}. Pass --resume to continue it, or --overwrite to "
                "start again."
            )
        changes = version_changes(previous, self.record)
        if changes and not previous["finished"]:
            if not allowed:
                raise OutputFolderError(
                    f"{self.path} has a run that was started with other versions: {changes}. Install those again, or "
                    "pass --allow-version-change to continue with the present ones; both are then recorded."
                )
            now = {"libraries": self.record["libraries"], "python": self.record["python"]}
            self.record = {**previous, "later_versions": [*previous.get("later_versions", []), now]}
        elif "later_versions" in previous:
            self.record = previous

    def _check_part(self, part: int) -> None:
        marker = read_json(self.manifest, self._marker(part))
        for name in marker["tables"]:
            check_file(self.manifest, self._part(part, name))
        if marker["matrices"]:
            check_file(self.manifest, self._matrices(part))

    def _tidy(self) -> None:
        with translated_write_errors(self.path):
            self.manifest.remove(_PARTS)
            self.manifest.tidy()

    def _part(self, part: int, name: str) -> Path:
        return self.path / _PARTS / f"{name}-{part:06d}.parquet"

    def _matrices(self, part: int) -> Path:
        return self.path / _PARTS / f"matrices-{part:06d}.safetensors"

    def _marker(self, part: int) -> Path:
        return self.path / _PARTS / f"done-{part:06d}.json"


def joined_folder(out: Path, record: dict[str, Any], joins: str | None) -> Path:
    """Return the folder of a run: ``out`` itself, or a subfolder if ``out`` contains a run that this one joins.

    Raises:
        OutputFolderError: If ``out`` contains such a run of another model.
    """
    previous = read_record(out) if joins is not None and out.is_dir() else None
    if previous is None or previous["analysis"] != joins:
        return out
    if previous["model"].get("sha256") != record["model"]["sha256"]:
        raise OutputFolderError(
            f"{out} contains an {joins} of {previous['model'].get('name')}, whose parameters are not those of "
            f"{record['model']['name']}. Choose another folder, or the model of the {joins}."
        )
    return out / f"{record['analysis'].replace(' ', '-')}-{record['fingerprint'][:8]}"


def joined_runs(path: Path) -> list[Path]:
    """Return the subfolders with the runs that were joined to a run."""
    return [child.parent for child in sorted(path.glob("*-????????/provenance.json")) if read_record(child.parent)]
