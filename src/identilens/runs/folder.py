"""A result folder while it is being filled: parts written one by one, resumed after an interruption."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from identilens.errors import OutputFolderError
from identilens.runs.files import translated_write_errors, write_json, write_table

_PARTS = "parts"


class RunFolder:
    """Holds one run. Parts are whole or absent, so that a killed run goes on after its last whole part.

    Raises:
        OutputFolderError: If the folder holds another run, or the same one and ``resume`` is not set,
            or files that are not a run.
    """

    def __init__(self, path: Path, record: dict[str, Any], *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = path
        self.record = record
        held = read_record(path)
        dropped = overwrite and held is not None
        if dropped:
            self._clear()
            held = None
        # What is left of a dropped run (figures, hidden states) or lay beside it stays.
        if held is None and not dropped and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise OutputFolderError(
                f"{path} exists and holds no run of identilens. Choose another folder, so that nothing is overwritten."
            )
        if held is not None and held["fingerprint"] != record["fingerprint"]:
            raise OutputFolderError(
                f"{path} holds another run ({describe(held)}), this one is {describe(record)}. "
                "Choose another folder, or pass --overwrite to drop what it holds."
            )
        if held is not None and not resume:
            state = "finished" if self.finished else "interrupted"
            raise OutputFolderError(
                f"{path} already holds this run, {state}. Pass --resume to go on with it, or --overwrite to start anew."
            )
        if held is None:
            with translated_write_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            write_json(path / "provenance.json", {**record, "finished": False})

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        record = read_record(self.path)
        return bool(record and record["finished"])

    def has(self, part: int) -> bool:
        """Whether a part was written whole."""
        return self._marker(part).exists()

    def write_part(self, part: int, tables: Mapping[str, pl.DataFrame]) -> None:
        """Write the tables of one part; the part counts only once all of them are there."""
        for name, table in tables.items():
            write_table(self._part(part, name), table)
        write_json(self._marker(part), sorted(tables))

    def read_part(self, part: int) -> dict[str, pl.DataFrame]:
        """Return the tables of a part that was written whole."""
        names = json.loads(self._marker(part).read_text(encoding="utf-8"))
        return {name: pl.read_parquet(self._part(part, name)) for name in names}

    def finish(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Write the tables of the whole run, mark it finished, and remove its parts."""
        for name, table in tables.items():
            write_table(self.path / f"{name}.parquet", table)
        write_json(self.path / "provenance.json", {**self.record, "finished": True})
        shutil.rmtree(self.path / _PARTS, ignore_errors=True)

    def _part(self, part: int, name: str) -> Path:
        return self.path / _PARTS / f"{name}-{part:06d}.parquet"

    def _marker(self, part: int) -> Path:
        return self.path / _PARTS / f"done-{part:06d}.json"

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else that may lie in the folder."""
        for name in (_PARTS, "matrices", "checkpoints", "model", "models", "runs"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for path in joined_runs(self.path):
            shutil.rmtree(path, ignore_errors=True)
        for pattern in ("*.parquet", "provenance.json", "report.html"):
            for file in self.path.glob(pattern):
                file.unlink()


def joined_folder(out: Path, record: dict[str, Any], joins: str | None) -> Path:
    """Return the folder of a run: ``out`` itself, or one beneath it when it holds a run that this one joins.

    Raises:
        OutputFolderError: If ``out`` holds such a run of another model.
    """
    held = read_record(out) if joins is not None and out.is_dir() else None
    if held is None or held["analysis"] != joins:
        return out
    if held["model"]["sha256"] != record["model"]["sha256"]:
        raise OutputFolderError(
            f"{out} holds an {joins} of {held['model']['name']}, whose parameters are not those of "
            f"{record['model']['name']}. Choose another folder, or the model of the {joins}."
        )
    return out / f"{record['analysis'].replace(' ', '-')}-{record['fingerprint'][:8]}"


def joined_runs(path: Path) -> list[Path]:
    """Return the folders of the runs that lie beneath a run's folder because they were joined to it."""
    return [child.parent for child in sorted(path.glob("*-????????/provenance.json")) if read_record(child.parent)]


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the provenance of the run that a folder holds, or None.

    Raises:
        OutputFolderError: If what stands there is no provenance.
    """
    file = path / "provenance.json"
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OutputFolderError(f"{file} is not valid JSON ({error}). Choose another folder.") from error
    if not isinstance(record, dict) or "fingerprint" not in record:
        raise OutputFolderError(f"{file} was not written by identilens. Choose another folder.")
    return record


def finished_record(folder: str | Path, analysis: str) -> dict[str, Any]:
    """Return the provenance of the finished run that a folder holds.

    Raises:
        OutputFolderError: If the folder holds no such run, or an interrupted one.
    """
    record = read_record(Path(folder))
    if record is None or record["analysis"] != analysis:
        raise OutputFolderError(f"{folder} holds no {analysis} result. Pass the folder given as out (--out).")
    if not record["finished"]:
        raise OutputFolderError(f"the {analysis} run in {folder} was interrupted. Finish it with --resume first.")
    return record


def describe(record: dict[str, Any]) -> str:
    """Return a run in a few words, for error messages."""
    count = record["texts"]["count"]
    return f"{record['analysis']} of {record['model'].get('name')} on {count} {'text' if count == 1 else 'texts'}"
