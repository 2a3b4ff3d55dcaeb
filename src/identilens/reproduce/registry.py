"""The reproductions by name: where each stands, imported when it is called. Imports nothing heavy itself."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Reproducible:
    """Where a reproduction stands.

    Attributes:
        place: Module and `Recipe`, with a colon between.
        help: What is made again, in a line.
    """

    place: str
    help: str


REPRODUCTIONS: dict[str, Reproducible] = {
    "bhardwaj2021-table1": Reproducible(
        "identilens.reproduce.bhardwaj2021_table1:RECIPE", "Accuracy of Con and Add encoders by key size."
    ),
    "bhardwaj2021-figure2": Reproducible(
        "identilens.reproduce.bhardwaj2021_figure2:FIGURE2", "Rank and nullity by text length, Con encoder."
    ),
    "bhardwaj2021-figure5": Reproducible(
        "identilens.reproduce.bhardwaj2021_figure5:RECIPE", "Least logit ranks of random alternatives."
    ),
    "bhardwaj2021-figure6": Reproducible(
        "identilens.reproduce.bhardwaj2021_figure2:FIGURE6", "Rank and nullity by text length, Add encoder."
    ),
    "structure2025-figure1": Reproducible(
        "identilens.reproduce.structure2025_figure1:RECIPE", "Cross attention of models that reverse a sequence."
    ),
    "structure2025-figure2": Reproducible(
        "identilens.reproduce.structure2025_figure2:RECIPE", "What the threshold l makes of the structure W."
    ),
}
"""Each by its name on the command line, such as ``bhardwaj2021-table1``."""


def recipe_named(name: str) -> Any:
    """Return the `Recipe` of a reproduction."""
    module, _, member = REPRODUCTIONS[name].place.partition(":")
    return getattr(import_module(module), member)
