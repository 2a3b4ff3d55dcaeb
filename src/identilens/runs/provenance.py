"""The provenance of a result: enough to repeat the run and to compare it with others."""

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

_LIBRARIES = ("identilens", "torch", "transformers", "numpy", "scipy", "polars")


@dataclass(frozen=True)
class Identity:
    """The inputs of a study.

    Attributes:
        model: Facts about the model: id or path, revision, digest, dtype, device.
        texts: One identifying string for each text, hashed in the record; or the number of texts and one digest of all.
        settings: Further facts that change the numbers, and settings with the values that are used.
        seed: Seed of the random numbers, if any are drawn.
    """

    model: Mapping[str, Any]
    texts: Sequence[str] | tuple[int, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


_COMMAND: ContextVar[list[str] | None] = ContextVar("command", default=None)
"""The command line, if identilens was started from there: that of another program may contain anything."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(\S*)")


@contextmanager
def commanded(words: Sequence[str]) -> Iterator[None]:
    """Record a command line, without the secrets in its URLs, in the provenance of all runs inside this context."""
    token = _COMMAND.set([without_secrets(word) for word in words])
    try:
        yield
    finally:
        _COMMAND.reset(token)


def command_line() -> list[str] | None:
    """Return the command line of the run that is going on, without secrets; None in Python."""
    return _COMMAND.get()


def without_secrets(text: str) -> str:
    """Return text with URLs that have neither a user and password nor values in their queries and fragments."""
    return _URL.sub(lambda url: url[1] + _bare(url[2]), text)


def _bare(url: str) -> str:
    address, mark, query = re.fullmatch(r"([^?#]*)([?#]?)(.*)", url, re.DOTALL).groups()  # pyright: ignore[reportOptionalMemberAccess]
    # A password may contain a slash, a name alone may not.
    address = re.sub(r"^([^/@:]*:.*|[^/@]*)@", "…@", address)
    return address + (f"{mark}…" if query else mark)


def provenance(analysis: str, identity: Identity, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run, ready for JSON; the seed is not among its settings.

    Its ``fingerprint`` is equal for runs that must produce the same table.
    """
    options = {**settings, **identity.settings}
    seed = options.pop("seed", identity.seed)
    count, hashes = _hashed(identity.texts)
    model = dict(identity.model)
    run = {"analysis": analysis, "model": model, "texts": hashes, "settings": options, "seed": seed}
    canonical = json.dumps(run, sort_keys=True, default=str)
    return {
        "analysis": analysis,
        "fingerprint": hashlib.sha256(canonical.encode()).hexdigest(),
        "model": model,
        "settings": options,
        "seed": seed,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": _COMMAND.get(),
        "texts": {"count": count, "sha256": hashes},
    }


def _hashed(texts: Sequence[str] | tuple[int, str]) -> tuple[int, list[str]]:
    if texts and isinstance(texts[0], int):
        return texts[0], [str(texts[1])]
    return len(texts), [
        hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).hexdigest() for text in texts
    ]
