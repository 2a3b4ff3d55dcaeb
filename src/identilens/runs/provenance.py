"""What made a result: enough to run it again and to tell two runs apart."""

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

_LIBRARIES = ("identilens", "torch", "transformers", "numpy", "scipy", "polars")


@dataclass(frozen=True)
class Identity:
    """What a study runs on.

    Attributes:
        model: Facts about the model: id or path, revision, digest, dtype, device.
        texts: One identifying string for each text, hashed in the record; or a number of texts and their one digest.
        settings: Facts that change the numbers beside the study's settings, or settings as they turned out.
        seed: Where random numbers are drawn.
    """

    model: Mapping[str, Any]
    texts: Sequence[str] | tuple[int, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


def provenance(analysis: str, identity: Identity, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run, ready for JSON; a seed among the settings is told apart.

    Its ``fingerprint`` is equal for runs that must give the same table.
    """
    options = {**settings, **identity.settings}
    seed = options.pop("seed", identity.seed)
    count, hashes = _hashed(identity.texts)
    model = dict(identity.model)
    run = {"analysis": analysis, "model": model, "texts": hashes, "settings": options, "seed": seed}
    canonical = json.dumps(run, sort_keys=True, default=str)
    return {
        "analysis": analysis, "fingerprint": hashlib.sha256(canonical.encode()).hexdigest(),
        "model": model, "settings": options, "seed": seed,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(), "platform": platform.platform(), "command": sys.argv,
        "texts": {"count": count, "sha256": hashes},
    }  # fmt: skip


def _hashed(texts: Sequence[str] | tuple[int, str]) -> tuple[int, list[str]]:
    if texts and isinstance(texts[0], int):
        return texts[0], [str(texts[1])]
    return len(texts), [hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
