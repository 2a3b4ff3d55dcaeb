"""The provenance of a result as rows of a table for people."""

import shlex
from collections.abc import Mapping
from typing import Any

_LABELS = {
    "name": "Model",
    "class": "Model class",
    "family": "Model family",
    "revision": "Revision",
    "sha256": "Digest of the parameters (sha256)",
    "digest": "Digest of the parameters (sha256)",
    "dtype": "Precision (dtype)",
    "device": "Device",
    "value_bias": "Bias of the values (in or out)",
    "layers": "Layers (counted from 0)",
    "heads": "Heads (counted from 0)",
    "rank_tolerance": "Singular values counted as zero up to",
}


def run_facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what made a result as pairs of label and value, from its provenance; whatever was not set is left out."""
    rows = [
        (_label(name), _value(value))
        for name, value in record.get("model", {}).items()
        if value is not None
    ]
    rows.append(("Number of texts", _value(record.get("texts", {}).get("count"))))
    rows += [
        (_label(name), _value(value))
        for name, value in record.get("settings", {}).items()
        if value is not None
    ]
    if record.get("seed") is not None:
        rows.append(("Seed", _value(record["seed"])))
    rows.append(
        (
            "Libraries",
            ", ".join(f"{name} {number}" for name, number in record.get("libraries", {}).items()),
        )
    )
    rows.append(
        ("Python", f"{record.get('python', '')} on {record.get('platform', 'an unknown platform')}")
    )
    if command := record.get("command"):
        rows.append(("Command", shlex.join(command) if isinstance(command, list) else str(command)))
    rows.append(("Fingerprint of the run", _value(record.get("fingerprint"))))
    return rows


def citation(record: Mapping[str, Any]) -> str:
    """Return one line that identifies a run in a paper."""
    model = record.get("model", {})
    digest = model.get("sha256") or model.get("digest")
    weights = f" (parameters sha256 {digest[:16]})" if digest else ""
    count = record.get("texts", {}).get("count")
    number = record.get("libraries", {}).get("identilens", "of unknown version")
    subject = f" of {model['name']}" if model.get("name") else ""
    return (
        f"identilens {number}: {record.get('analysis')}{subject}{weights} on "
        f"{count} {'text' if count == 1 else 'texts'}, run {str(record.get('fingerprint'))[:16]}."
    )


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " ").capitalize())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{_label(name)}: {_value(one)}" for name, one in value.items() if one is not None
        )
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
