"""Checkpoints of a training run: each is marked when it is complete; a run continues from the last complete one."""

from pathlib import Path

from identilens.runs.files import Manifest, write_json
from identilens.runs.reading import read_json

CHECKPOINTS = "checkpoints"
_MARK, _STATE, _BEST = "whole.json", "trainer_state.json", "best_model_checkpoint"


def keep_last(folder: Path, step: int, best: str | None) -> None:
    """Mark the checkpoint of a step as complete, then delete all others except the best one."""
    manifest, place = Manifest(folder), _place(folder, step)
    files = [file for file in place.rglob("*") if file.is_file()]
    manifest.add(*(file.relative_to(folder).as_posix() for file in files))
    write_json(place / _MARK, {"step": step})
    for other in _steps(folder) - {step}:
        if best is None or Path(best).name != _place(folder, other).name:
            manifest.remove(f"{CHECKPOINTS}/{_place(folder, other).name}/")


def last_whole(folder: Path) -> Path | None:
    """Return the last complete checkpoint; None if there is none."""
    steps = _steps(folder)
    if not steps:
        return None
    place = _place(folder, max(steps))
    state = read_json(place / _STATE)
    if best := state[_BEST]:
        # The folder may have been moved since.
        write_json(place / _STATE, {**state, _BEST: str(place.with_name(Path(best).name))})
    return place


def _steps(folder: Path) -> set[int]:
    names = Manifest(folder).under(f"{CHECKPOINTS}/")
    return {
        int(name.split("/")[1].rpartition("-")[2]) for name in names if name.endswith(f"/{_MARK}")
    }


def _place(folder: Path, step: int) -> Path:
    return folder / CHECKPOINTS / f"checkpoint-{step}"
