"""Checkpoints of a training run: each is marked when it is complete; a run continues from the last complete one."""

import json
from pathlib import Path
from typing import Any

from identilens.errors import OutputFolderError
from identilens.runs.files import write_json
from identilens.runs.manifest import Manifest, digest_of
from identilens.runs.reading import check_file, read_json

CHECKPOINTS = "checkpoints"
_MARK, _STATE, _BEST = "whole.json", "trainer_state.json", "best_model_checkpoint"


def keep_last(folder: Path, step: int, best: str | None) -> None:
    """Mark the checkpoint of a step as complete, then delete all others except the best one."""
    manifest, place = Manifest(folder), _place(folder, step)
    files = sorted(file for file in place.rglob("*") if file.is_file() and file.name != _MARK)
    for file in files:
        manifest.add(file, digest_of(file))
    write_json(place / _MARK, [file.relative_to(place).as_posix() for file in files])
    for other in _steps(folder) - {step}:
        if best is None or Path(best).name != _place(folder, other).name:
            manifest.remove(f"{CHECKPOINTS}/{_place(folder, other).name}/")


def last_whole(folder: Path) -> Path | None:
    """Return the last complete checkpoint whose best checkpoint is also complete; None if there is none."""
    manifest = Manifest(folder)
    for step in sorted(_steps(folder), reverse=True):
        place = _place(folder, step)
        try:
            state = _checked(manifest, place)
            if (best := state.get(_BEST)) is not None:
                # The folder may have been moved since.
                state[_BEST] = str(place.with_name(Path(best).name))
                _checked(manifest, Path(state[_BEST]))
        except OutputFolderError:
            continue
        if best != state.get(_BEST):
            write_json(place / _STATE, state)
        return place
    return None


def _checked(manifest: Manifest, place: Path) -> dict[str, Any]:
    for name in read_json(manifest, place / _MARK):
        check_file(manifest, place / name)
    return json.loads((place / _STATE).read_bytes())


def _steps(folder: Path) -> set[int]:
    names = Manifest(folder).names(f"{CHECKPOINTS}/")
    return {int(name.split("/")[1].rpartition("-")[2]) for name in names if name.endswith(f"/{_MARK}")}


def _place(folder: Path, step: int) -> Path:
    return folder / CHECKPOINTS / f"checkpoint-{step}"
