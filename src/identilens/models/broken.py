"""Which file of a model's folder is damaged, after loading has failed or was incomplete."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from identilens.errors import ModelError

_REMEDY = "Download the model again, or save it again with save_pretrained."


def refuse_endless_files(model: str | Path) -> None:
    """Raise ModelError for a pipe or a device in a model's folder, which cannot be read to its end."""
    folder = Path(model)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(f"{path} is a pipe or a device, not a file. {_REMEDY}")


def damaged_file(model: str | Path) -> str | None:
    """Return the first damaged file of a model's folder and what is wrong with it; None if all files can be read."""
    for names, read in _READERS.items():
        try:
            files = sorted(Path(model).glob(names))
        except (OSError, ValueError):  # no name that the file system can have
            return None
        for file in files:
            try:
                read(file)
            except (OSError, ValueError, RecursionError, SafetensorError) as error:
                return f"{file} is damaged ({error}). {_REMEDY}"
    return None


def cannot_load(model: str | Path, error: Exception) -> str:
    """Return the message for a model that could not be loaded: the damaged file, or the reason."""
    first = (str(error).strip() or repr(error)).splitlines()[0]
    return (
        damaged_file(model)
        or f"{str(model)!r} cannot be loaded ({type(error).__name__}: {first}). {_REMEDY}"
    )


def _read_json(file: Path) -> Any:
    expected = dict if file.name == "config.json" else dict | list
    if not isinstance(content := json.loads(file.read_bytes()), expected):
        raise ValueError(f"it contains {content!r:.40}, not an object")


def _read_text(file: Path) -> None:
    if not file.read_text(encoding="utf-8").strip():
        raise ValueError("it is empty")


def _read_tensors(file: Path) -> None:
    with safe_open(file, framework="pt") as tensors:
        tensors.keys()


_READERS = {
    "*.json": _read_json,
    "*.safetensors": _read_tensors,
    "vocab.txt": _read_text,
    "merges.txt": _read_text,
}
