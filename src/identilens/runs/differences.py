"""The differences of two runs, in words."""

import json
from collections.abc import Mapping
from typing import Any

_MOST = 3
"""Largest number of differences that are named."""

_LENGTH = 70
"""Largest number of characters that are shown of a value."""


def described(record: dict[str, Any]) -> str:
    """Return a run in a few words."""
    count = record["texts"].get("count")
    return f"{record['analysis']} of {record['model'].get('name')} on {count} {'text' if count == 1 else 'texts'}"


def differences(previous: dict[str, Any], record: dict[str, Any]) -> str:
    """Return the differences of the run that a folder contains from this one."""
    here = json.loads(json.dumps(record, default=str))
    lines = (
        []
        if previous["analysis"] == here["analysis"]
        else [_apart("the analysis", previous["analysis"], here["analysis"])]
    )
    for what, group in (("", "settings"), ("model ", "model")):
        lines += changed(previous[group], here[group], what)
    if previous.get("seed") != here["seed"]:
        lines.append(_apart("seed", previous.get("seed"), here["seed"]))
    lines += _texts(previous["texts"], here["texts"])
    more = len(lines) - _MOST
    return "; ".join(lines[:_MOST]) + (f"; and {more} more" if more > 0 else "")


def changed(there: Mapping[str, Any], here: Mapping[str, Any], what: str = "") -> list[str]:
    """Return the differences of two records, a line for each name, with ``what`` before it."""
    return [
        _apart(f"{what}{name}", there.get(name), here.get(name))
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    ]


def model_and_texts(there: Mapping[str, Any] | None, here: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether two runs have the same model and texts, by digests, and what was compared, in words.

    What neither run has, such as the model of a study that trains its own, is not compared.
    """
    if there is None:
        return False, "it has no provenance to compare with"
    digests = there["model"].get("sha256"), here["model"].get("sha256")
    lines = [] if digests[0] == digests[1] else [_apart("sha256 of the model", *digests)]
    lines += _texts(there["texts"], here["texts"])
    compared = [] if digests == (None, None) else ["model"]
    compared += ["texts"] if there["texts"]["sha256"] else []
    if lines:
        return False, "; ".join(lines)
    return (
        True,
        f"the same {' and '.join(compared)}"
        if compared
        else "it has no digests of a model or texts",
    )


def version_changes(previous: dict[str, Any], record: dict[str, Any]) -> str:
    """Return the versions of libraries and Python that changed since the run was last continued; empty if none did."""
    last = (run.get("later_versions", [run])[-1] for run in (previous, record))
    there, here = ({**run["libraries"], "python": run.get("python")} for run in last)
    return ", ".join(
        f"{name} {there.get(name)} (now {here.get(name)})"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    )


def _texts(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    ours, theirs, counts = (
        here["sha256"],
        there.get("sha256") or [],
        (there.get("count"), here["count"]),
    )
    lines = [] if counts[0] == counts[1] else [_apart("number of texts", *counts)]
    if len(ours) < counts[1]:  # of many texts, one digest of all
        return lines or ([] if ours == theirs else ["the texts are others"])
    first = next(
        (at for at, (one, other) in enumerate(zip(theirs, ours, strict=False)) if one != other),
        None,
    )
    return lines + ([] if first is None else [f"text {first} is another one"])


def _apart(name: str, there: Any, here: Any) -> str:
    return f"{name} is {_short(there)} there and {_short(here)} here"


def _short(value: Any) -> str:
    words = json.dumps(value, ensure_ascii=False, default=str)
    return words if len(words) <= _LENGTH else f"{words[: _LENGTH - 1]}…"
