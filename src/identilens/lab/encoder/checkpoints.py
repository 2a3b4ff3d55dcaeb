"""Checkpoints of a training run: each is marked when it is complete; a run continues from the last complete one."""

from pathlib import Path
from typing import Any

from identilens.errors import OutputFolderError
from identilens.runs.files import Manifest, write_json
from identilens.runs.reading import read_json

CHECKPOINTS = "checkpoints"
_MARK, _STATE, _BEST = "whole.json", "trainer_state.json", "best_model_checkpoint"


def keep_last(folder: Path, step: int, best: str | None) -> None:
    """Mark the checkpoint of a step as complete, then delete all others except the best one."""
    manifest, place = Manifest(folder), _place(folder, step)
    files = sorted(file for file in place.rglob("*") if file.is_file() and file.name != _MARK)
    manifest.add(*(file.relative_to(folder).as_posix() for file in files))
    sizes = {file.relative_to(place).as_posix(): file.stat().st_size for file in files}
    # It is written again where the folder was moved.
    del sizes[_STATE]
    write_json(place / _MARK, sizes)
    for other in _steps(folder) - {step}:
        if best is None or Path(best).name != _place(folder, other).name:
            manifest.remove(f"{CHECKPOINTS}/{_place(folder, other).name}/")


def last_whole(folder: Path) -> Path | None:
    """Return the last complete checkpoint whose best checkpoint is also complete; None if there is none."""
    for step in sorted(_steps(folder), reverse=True):
        place = _place(folder, step)
        try:
            state = _checked(place)
            if (best := state.get(_BEST)) is not None:
                # The folder may have been moved since.
                state[_BEST] = str(place.with_name(Path(best).name))
                _checked(Path(state[_BEST]))
        except OutputFolderError:
            continue
        if best != state.get(_BEST):
            write_json(place / _STATE, state)
        return place
    return None


def _checked(place: Path) -> dict[str, Any]:
    for name, size in read_json(place / _MARK).items():
        if not (place / name).is_file() or (place / name).stat().st_size != size:
            raise OutputFolderError(f"{place / name} is not the file that the run wrote.")
    return read_json(place / _STATE)


def _steps(folder: Path) -> set[int]:
    names = Manifest(folder).under(f"{CHECKPOINTS}/")
    return {
        int(name.split("/")[1].rpartition("-")[2]) for name in names if name.endswith(f"/{_MARK}")
    }


def _place(folder: Path, step: int) -> Path:
    return folder / CHECKPOINTS / f"checkpoint-{step}"
