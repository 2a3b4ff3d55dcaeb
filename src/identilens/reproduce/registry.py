"""The reproductions by name: where each stands, imported when it is called. Imports nothing heavy itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reproducible:
    """Where a reproduction stands.

    Attributes:
        place: Module and function, with a colon between.
        help: What is made again, in a line.
    """

    place: str
    help: str


REPRODUCTIONS: dict[str, Reproducible] = {}
"""Each by its name on the command line, such as ``bhardwaj2021-table1``."""
