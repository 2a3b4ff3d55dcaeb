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

Record = dict[str, Any]
"""The provenance of a run, ready for JSON."""

FORMAT = 1
"""Number of the form of a run's folder: a run of another number is neither read nor continued."""

_LIBRARIES = ("identilens", "torch", "transformers", "numpy", "scipy", "polars")
_MOST_TEXTS = 10_000
"""Largest number of texts whose digests a record lists one by one."""

_MOST = 3
"""Largest number of differences that are named."""

_LENGTH = 70
"""Largest number of characters that are shown of a value."""


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


_COMMAND: ContextVar[list[str] | None] = ContextVar("command", default=None)
"""The command line, if identilens was started from there: that of another program may contain anything."""


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

    def bare(url: re.Match[str]) -> str:
        # A password may contain a slash, a name alone may not.
        address = re.sub(r"^([^/@:]*:.*|[^/@]*)@", "…@", url[2])
        return url[1] + address + (f"{url[3]}…" if url[4] else url[3])

    return re.sub(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s?#]*)([?#]?)(\S*)", bare, text)


def provenance(analysis: str, identity: Identity, settings: Mapping[str, Any]) -> Record:
    """Return the record of a run, ready for JSON; the seed is not among its settings.

    Its ``fingerprint`` is equal for runs that must produce the same table.
    """
    import torch  # here, so that the command line starts without it

    options = {**settings, **identity.settings}
    seed = options.pop("seed", identity.seed)
    hashes = _hashes(identity.texts)
    model = dict(identity.model)
    run = {"analysis": analysis, "model": model, "texts": hashes, "settings": options, "seed": seed}
    canonical = json.dumps(run, sort_keys=True, default=str)
    return {
        "format": FORMAT,
        "analysis": analysis,
        "fingerprint": hashlib.sha256(canonical.encode()).hexdigest(),
        "model": model,
        "settings": options,
        "seed": seed,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        "command": _COMMAND.get(),
        "texts": {"count": len(identity.texts), "sha256": hashes},
    }


def _hashes(texts: Sequence[str] | Sequence[bytes]) -> list[str]:
    """Return the digest of each text, or of very many texts one digest of all."""
    digests = (
        text
        if isinstance(text, bytes)
        else hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        for text in texts
    )
    if len(texts) <= _MOST_TEXTS:
        return [digest.hex() for digest in digests]
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest)
    return [whole.hexdigest()]


def subject(record: Record) -> str:
    """Return the model and the number of texts of a run, in words."""
    count = record["texts"]["count"]
    return f"{record['model'].get('name')} on {count} {'text' if count == 1 else 'texts'}"


def changed(there: Record, here: Record) -> list[str]:
    """Return the differences of two records, a line for each name."""

    def short(value: Any) -> str:
        words = json.dumps(value, ensure_ascii=False, default=str)
        return words if len(words) <= _LENGTH else f"{words[: _LENGTH - 1]}…"

    return [
        f"{name} is {short(there.get(name))} there and {short(here.get(name))} here"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    ]


def differences(previous: Record, record: Record) -> str:
    """Return the differences of the run that a folder contains from this one."""
    here = json.loads(json.dumps(record, default=str))

    def facts(run: Record) -> dict[str, Any]:
        model = {f"model {name}": value for name, value in run["model"].items()}
        return {
            "the analysis": run["analysis"],
            **run["settings"],
            **model,
            "seed": run.get("seed"),
        }

    lines = changed(facts(previous), facts(here)) + _texts(previous["texts"], here["texts"])
    more = len(lines) - _MOST
    return "; ".join(lines[:_MOST]) + (f"; and {more} more" if more > 0 else "")


def model_and_texts(there: Record | None, here: Record) -> tuple[bool, str]:
    """Return whether two runs have the same model and texts, by digests, and what was compared, in words.

    What neither run has, such as the model of a study that trains its own, is not compared.
    """
    if there is None:
        return False, "it has no provenance to compare with"
    name = "digest of the model"
    models = [{name: run["model"].get("digest")} for run in (there, here)]
    lines = changed(*models) + _texts(there["texts"], here["texts"])
    if lines:
        return False, "; ".join(lines)
    compared = ["model"] if models[0][name] is not None else []
    compared += ["texts"] if there["texts"]["sha256"] else []
    if not compared:
        return True, "it has no digests of a model or texts"
    return True, f"the same {' and '.join(compared)}"


def version_changes(previous: Record, record: Record) -> str:
    """Return the versions of libraries and Python that changed since the run was last continued; empty if none did."""
    last = (run.get("later_versions", [run])[-1] for run in (previous, record))
    there, here = ({**run["libraries"], "python": run.get("python")} for run in last)
    return ", ".join(
        f"{name} {there.get(name)} (now {version})"
        for name, version in here.items()
        if there.get(name) != version
    )


def _texts(there: Record, here: Record) -> list[str]:
    lines = changed({"number of texts": there.get("count")}, {"number of texts": here["count"]})
    theirs, ours = there.get("sha256") or [], here["sha256"]
    if len(ours) < here["count"]:  # of many texts, one digest of all
        return lines or ["the texts differ"] * (ours != theirs)
    pairs = enumerate(zip(theirs, ours, strict=False))
    return lines + [f"text {at} differs" for at, (one, other) in pairs if one != other][:1]
