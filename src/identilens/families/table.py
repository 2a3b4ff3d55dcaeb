"""The trials of every model type of transformers: a table in CSV that ``make families`` writes."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import Any, Literal

from identilens.errors import InputError

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


Outcome = Literal["served", "refused", "no attention", "part", "not built", "crash", "wrong"]


@dataclass(frozen=True)
class Trial:
    """The result of trying a model type.

    Attributes:
        family: Model type.
        outcome: ``served``: captured with proof; ``refused``: an error says what to do; ``no attention``: refused, and
            the model has no softmax; ``part``: of other models, and tried within them; ``not built``: no small model
            of it could be built and run; ``crash``, ``wrong``: defects.
        model: Class tried.
        way: How attention is captured.
        inputs: Kinds of input served, with commas between.
        layers: Attention layers captured.
        difference: Largest difference from the weights that the family's own ``output_attentions`` gives; empty
            where it gives none.
        reason: Why it is not served, and what to do instead; for served types, which parts are not.
    """

    family: str
    outcome: Outcome
    model: str = ""
    way: str = ""
    inputs: str = ""
    layers: int = 0
    difference: float | None = None
    reason: str = ""


def read_table() -> dict[str, Trial]:
    """Return the packaged trials by model type."""
    text = files("identilens.families").joinpath("families.csv").read_text(encoding="utf-8")
    table: dict[str, Trial] = {}
    row: dict[str, Any]
    for row in csv.DictReader(text.splitlines()):
        difference = float(row["difference"]) if row["difference"] else None
        row |= {"layers": int(row["layers"]), "difference": difference}
        table[row["family"]] = Trial(**row)
    return table


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
    hint = (
        f"The nearest are {', '.join(near)}."
        if near
        else "Call identilens families for all of them."
    )
    raise InputError(
        f"transformers has no model type {family!r}. {hint} The config.json of a model gives its type as model_type."
    )
