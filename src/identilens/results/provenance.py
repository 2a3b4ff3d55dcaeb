"""What made a result: enough to run it again and to tell two runs apart."""

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

_LIBRARIES = ("identilens", "torch", "transformers", "numpy", "scipy", "polars")


def provenance(
    analysis: str,
    *,
    model: dict[str, Any],
    texts: Sequence[str],
    settings: dict[str, Any],
    seed: int | None = None,
) -> dict[str, Any]:
    """Return the record kept with a result.

    Args:
        analysis: Name of the analysis, such as "audit".
        model: Facts about the model: id or path, revision, digest, dtype, device.
        texts: One identifying string for each text, hashed here.
        settings: Options that change the numbers.
        seed: Seed of the random numbers, where any are drawn.

    Returns:
        A JSON-ready record whose ``fingerprint`` is equal for runs that must give the same table.
    """
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
    identity = {"analysis": analysis, "model": model, "texts": hashes, "settings": settings, "seed": seed}
    canonical = json.dumps(identity, sort_keys=True, default=str)
    return {
        "analysis": analysis,
        "fingerprint": hashlib.sha256(canonical.encode()).hexdigest(),
        "model": model,
        "settings": settings,
        "seed": seed,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
        "texts": {"count": len(hashes), "sha256": hashes},
    }
