"""Checkpoints of a training run: a complete one is listed in the manifest; a run continues from the last of these."""

from pathlib import Path

from identilens.runs.files import Manifest, write_json
from identilens.runs.reading import read_json

CHECKPOINTS = "checkpoints"
_STATE, _BEST = "trainer_state.json", "best_model_checkpoint"


def list_checkpoint(folder: Path, step: int) -> None:
    """List the files of a complete checkpoint."""
    files = (folder / CHECKPOINTS / f"checkpoint-{step}").rglob("*")
    Manifest(folder).add(*(file.relative_to(folder).as_posix() for file in files if file.is_file()))


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint; None if there is none."""
    listed = Manifest(folder).under(f"{CHECKPOINTS}/")
    states = [folder / name for name in listed if name.endswith(f"/{_STATE}")]
    if not states:
        return None
    file = max(states, key=lambda file: int(file.parent.name.rpartition("-")[2]))
    state = read_json(file)
    if state[_BEST]:
        # The folder may have been moved since.
        best = file.parent.with_name(Path(state[_BEST]).name)
        write_json(file, {**state, _BEST: str(best)})
    return file.parent
