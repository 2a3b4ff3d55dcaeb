"""What tells two runs apart, in words."""

import json
from collections.abc import Mapping
from typing import Any

_MOST = 3
"""Differences that are named."""

_LENGTH = 70
"""Characters of a value that are shown."""


def described(record: dict[str, Any]) -> str:
    """Return a run in a few words."""
    count = record["texts"].get("count")
    return f"{record['analysis']} of {record['model'].get('name')} on {count} {'text' if count == 1 else 'texts'}"


def differences(held: dict[str, Any], record: dict[str, Any]) -> str:
    """Return what differs in the run that a folder contains from this one."""
    here = json.loads(json.dumps(record, default=str))
    found = [] if held["analysis"] == here["analysis"] else [_apart("the analysis", held["analysis"], here["analysis"])]
    for what, group in (("", "settings"), ("model ", "model")):
        there, now = held[group], here[group]
        found += [
            _apart(f"{what}{name}", there.get(name), now.get(name))
            for name in dict.fromkeys([*now, *there])
            if there.get(name) != now.get(name)
        ]
    if held.get("seed") != here["seed"]:
        found.append(_apart("seed", held.get("seed"), here["seed"]))
    found += _texts(held["texts"], here["texts"])
    more = len(found) - _MOST
    return "; ".join(found[:_MOST]) + (f"; and {more} more" if more > 0 else "")


def model_and_texts(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return where the model or the texts of a run differ from those of another, by their digests; or nothing."""
    digests = there["model"].get("sha256"), here["model"].get("sha256")
    found = [] if digests[0] == digests[1] else [_apart("sha256 of the model", *digests)]
    return "; ".join(found + _texts(there["texts"], here["texts"]))


def version_changes(held: dict[str, Any], record: dict[str, Any]) -> str:
    """Return which versions of libraries and of Python are not those that the run was last done with; or nothing."""
    last = (one.get("later_versions", [one])[-1] for one in (held, record))
    there, here = ({**one["libraries"], "python": one.get("python")} for one in last)
    return ", ".join(
        f"{name} {there.get(name)} (now {here.get(name)})"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    )


def _texts(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    ours, theirs, counts = here["sha256"], there.get("sha256") or [], (there.get("count"), here["count"])
    found = [] if counts[0] == counts[1] else [_apart("number of texts", *counts)]
    if len(ours) < counts[1]:  # of many texts, one digest of all
        return found or ([] if ours == theirs else ["the texts are others"])
    first = next((at for at, (one, other) in enumerate(zip(theirs, ours, strict=False)) if one != other), None)
    return found + ([] if first is None else [f"text {first} is another one"])


def _apart(name: str, there: Any, here: Any) -> str:
    return f"{name} is {_short(there)} there and {_short(here)} here"


def _short(value: Any) -> str:
    words = json.dumps(value, ensure_ascii=False, default=str)
    return words if len(words) <= _LENGTH else f"{words[: _LENGTH - 1]}…"
