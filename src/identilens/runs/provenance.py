"""The provenance of a result: enough to repeat the run and to compare it with others."""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

Record = dict[str, Any]
"""The provenance of a run, ready for JSON."""

FORMAT = 1
"""Number of the form of a run's folder: a run of another number is neither read nor continued."""

_LIBRARIES = ("identilens", "torch", "transformers", "numpy", "scipy", "polars")
version = cache(metadata.version)
_MOST = 3
"""Largest number of differences that are named."""


@dataclass(frozen=True)
class Identity:
    """The inputs of a study.

    Attributes:
        model: Facts about the model: id or path, revision, digest, dtype, device.
        texts: For each text a string that identifies it, hashed in the record, or its sha256.
        settings: Further facts that change the numbers, and settings with the values that are used.
        seed: Seed of the random numbers, if any are drawn.
    """

    model: Mapping[str, Any]
    texts: Sequence[str] | Sequence[bytes]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


def provenance(analysis: str, identity: Identity, settings: Mapping[str, Any]) -> Record:
    """Return the record of a run, ready for JSON; the seed is not among its settings.

    Its ``fingerprint`` is equal for runs that must produce the same table.
    """
    import torch  # here, so that the command line starts without it

    options = {**settings, **identity.settings}
    seed = options.pop("seed", identity.seed)
    hashes = [
        text.hex()
        if isinstance(text, bytes)
        else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        for text in identity.texts
    ]
    model = dict(identity.model)
    run = {"analysis": analysis, "model": model, "texts": hashes, "settings": options, "seed": seed}
    canonical = json.dumps(run, sort_keys=True, default=str)
    return {
        "format": FORMAT,
        "fingerprint": hashlib.sha256(canonical.encode()).hexdigest(),
        **run,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": f"{torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}",
        "texts": {"count": len(identity.texts), "sha256": hashes},
    }


def subject(record: Record) -> str:
    """Return the model and the number of texts of a run, in words."""
    count = record["texts"]["count"]
    return f"{record['model'].get('name')} on {count} {'text' if count == 1 else 'texts'}"


def changed(there: Record, here: Record) -> list[str]:
    """Return the differences of two records, a line for each name."""

    def short(value: Any) -> str:
        return f"{json.dumps(value, ensure_ascii=False, default=str):.70}"

    return [
        f"{name} is {short(there.get(name))} there and {short(here.get(name))} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]


def differences(previous: Record, record: Record) -> str:
    """Return the differences of the run that a folder contains from this one, a few of them if there are many."""

    def facts(run: Record) -> dict[str, Any]:
        digests = enumerate(run["texts"]["sha256"])
        return {
            "the analysis": run["analysis"],
            **run["settings"],
            **{f"model {name}": value for name, value in run["model"].items()},
            "seed": run["seed"],
            "number of texts": run["texts"]["count"],
            **{f"digest {number} of texts": digest for number, digest in digests},
        }

    lines = changed(facts(previous), facts(json.loads(json.dumps(record, default=str))))
    more = len(lines) - _MOST
    return "; ".join(lines[:_MOST]) + (f"; and {more} more" if more > 0 else "")


def version_changes(previous: Record, record: Record) -> str:
    """Return the versions of libraries and Python that are not the same; empty if all are."""
    there, here = ({**run["libraries"], "python": run["python"]} for run in (previous, record))
    return ", ".join(changed(there, here))
