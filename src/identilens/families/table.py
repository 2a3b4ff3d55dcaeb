"""The table of results for every model type, packaged as CSV and written by ``make families``."""

import csv
from collections.abc import Iterable
from dataclasses import asdict, fields
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from identilens.errors import InputError
from identilens.families.trial import Trial

MEANINGS = {
    "served": "captured with proof",
    "refused": "an error says why, and what to do",
    "no attention": "refused: the model has no softmax",
    "part": "a part of other models, tried within them",
    "not built": "no tiny model of it could be made and run here, so nothing is known; try your own model",
    "crash": "a defect: an error that is not clear",
    "wrong": "a defect: other weights than the family's own",
}
"""Outcomes, and what each means."""


def write_table(trials: Iterable[Trial], file: Path) -> None:
    """Write trials as CSV."""
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, [column.name for column in fields(Trial)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(trial) for trial in trials)


def read_table() -> dict[str, Trial]:
    """Return the packaged trials by model type."""
    text = files("identilens.families").joinpath("families.csv").read_text(encoding="utf-8")
    return {row["family"]: _trial(row) for row in csv.DictReader(text.splitlines())}


def known(family: str, table: Iterable[str]) -> str:
    """Return the model type as transformers writes it; hyphens and underscores are the same.

    Raises:
        InputError: If there is no such type.
    """
    types = list(table)
    alike = {name.replace("-", "_").lower(): name for name in types}
    name = family.replace("-", "_").lower()
    if name in alike:
        return alike[name]
    near = [alike[close] for close in get_close_matches(name, alike, 5, 0.5)]
    hint = f"The nearest are {', '.join(near)}." if near else "Call identilens families for all of them."
    raise InputError(
        f"transformers has no model type {family!r}. {hint} The config.json of a model gives its type as model_type."
    )


def _trial(row: dict[str, str]) -> Trial:
    difference = float(row["difference"]) if row["difference"] else None
    return Trial(**{**row, "layers": int(row["layers"]), "difference": difference})  # pyright: ignore[reportArgumentType]
