"""Which file of a model cannot be read, where loading it has failed."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open


def broken(model: str | Path, error: Exception) -> str:
    """Return what to say of a model that could not be loaded: the first file of its folder that is damaged, or why."""
    first = (str(error).strip() or repr(error)).splitlines()[0]
    folder = Path(model)
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if (why := _unreadable(file, _read_json)) is not None:
            return f"{file} is no valid JSON ({why}). {_REMEDY}"
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
        if (why := _unreadable(file, _read_tensors)) is not None:
            return f"{file} holds no weights that can be read ({why}). {_REMEDY}"
    return f"the model {str(model)!r} cannot be loaded ({type(error).__name__}: {first}). {_REMEDY}"


_REMEDY = "Download the model again, or save it again with save_pretrained."


def _unreadable(file: Path, read: Any) -> str | None:
    try:
        read(file)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        return str(error)
    return None


def _read_json(file: Path) -> None:
    if not isinstance(json.loads(file.read_bytes()), dict | list):
        raise ValueError("it holds no object")


def _read_tensors(file: Path) -> None:
    with safe_open(file, framework="pt") as tensors:
        tensors.keys()
