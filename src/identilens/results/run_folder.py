"""A result folder while it is being filled: parts written one by one, resumed after an interruption."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from identilens.errors import OutputFolderError
from identilens.results.files import translated_write_errors, write_json, write_table

_PARTS = "parts"


class RunFolder:
    """Holds one run. Parts are whole or absent, so that a killed run goes on after its last whole part.

    Args:
        path: The folder; made where missing.
        record: Provenance of the run about to start.
        resume: Go on with a run that was interrupted here, or return the finished one.
        overwrite: Drop whatever run the folder holds.

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

    def write_part(self, part: int, tables: dict[str, pl.DataFrame]) -> None:
        """Write the tables of one part; the part counts only once all of them are there."""
        for name, table in tables.items():
            write_table(self._part(part, name), table)
        write_json(self._marker(part), sorted(tables))

    def finish(self, merge: dict[str, Callable[[pl.DataFrame], pl.DataFrame]], parts: int) -> None:
        """Join the parts of each table in order, pass them through its merger, and mark the run finished."""
        for name, merger in merge.items():
            whole = pl.concat([pl.read_parquet(self._part(part, name)) for part in range(parts)])
            write_table(self.path / f"{name}.parquet", merger(whole))
        write_json(self.path / "provenance.json", {**self.record, "finished": True})
        shutil.rmtree(self.path / _PARTS, ignore_errors=True)

    def _part(self, part: int, name: str) -> Path:
        return self.path / _PARTS / f"{name}-{part:06d}.parquet"

    def _marker(self, part: int) -> Path:
        return self.path / _PARTS / f"done-{part:06d}.json"

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else that may lie in the folder."""
        for name in (_PARTS, "matrices", "checkpoints", "model"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for path in (*self.path.glob("intervals-*"), *self.path.glob("alternatives-*")):
            if read_record(path) is not None:
                shutil.rmtree(path, ignore_errors=True)
        for pattern in ("*.parquet", "provenance.json", "report.html"):
            for file in self.path.glob(pattern):
                file.unlink()


def finished_parts(path: Path, name: str) -> list[pl.DataFrame]:
    """Return the tables of one name of all parts that an interrupted run has written whole, in order."""
    parts = path / _PARTS
    numbers = sorted(marker.stem.removeprefix("done-") for marker in parts.glob("done-*.json"))
    return [pl.read_parquet(parts / f"{name}-{number}.parquet") for number in numbers]


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the provenance of the run that a folder holds, or None."""
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


def describe(record: dict[str, Any]) -> str:
    """Return a run in a few words, for error messages."""
    return f"{record['analysis']} of {record['model'].get('name')} on {record['texts']['count']} texts"
