"""The reproductions by name, each imported when it is called. Imports nothing heavy itself."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Reproducible:
    """One reproduction in the registry.

    Attributes:
        place: Module and `Recipe`, separated by a colon.
        help: What is reproduced, in one line.
    """

    place: str
    help: str


REPRODUCTIONS = {
    name: Reproducible(f"identilens.reproduce.{place}", words)
    for name, place, words in (
        ("bhardwaj2021-table1", "bhardwaj2021_table1:RECIPE", "Accuracy of Con and Add encoders by key size."),
        ("bhardwaj2021-figure2", "bhardwaj2021_figure2:FIGURE2", "Rank and nullity by text length, Con encoder."),
        ("bhardwaj2021-figure5", "bhardwaj2021_figure5:RECIPE", "Least logit ranks of random alternatives."),
        ("bhardwaj2021-figure6", "bhardwaj2021_figure2:FIGURE6", "Rank and nullity by text length, Add encoder."),
        ("structure2025-figure1", "structure2025_figure1:RECIPE", "Cross attention of models that reverse a sequence."),
        ("structure2025-figure2", "structure2025_figure2:RECIPE", "The structure W by threshold l."),
        ("wen2023-table1", "wen2023_table1:RECIPE", "Attention variation by types, depth and layers."),
        ("wen2023-figure1", "wen2023_figure1:RECIPE", "Attention of standard 2-layer transformers by seed."),
        ("wen2023-figure2", "wen2023_figure2:RECIPE", "Attention after minimal first layers by seed."),
        ("wen2023-figure3", "wen2023_figure3:FIGURE3", "Balance violation and length generalisation."),
        ("wen2023-figure4", "wen2023_figure4:RECIPE", "Heads that look like a stack but are not used."),
        ("wen2023-figure7", "wen2023_figure7:RECIPE", "Attention of models trained on prefixes."),
        ("wen2023-figure8", "wen2023_prefixes:FIGURE8", "Attention variation on longer prefixes."),
        ("wen2023-footnote4", "wen2023_footnote4:RECIPE", "Models trained with uniform attention."),
        ("wen2023-footnote13", "wen2023_prefixes:FOOTNOTE13", "Attention variation on other prefixes."),
        ("wen2023-c7", "wen2023_c7:RECIPE", "Models of the paper's own layer (Eq. 6), trained."),
        ("wen2023-corollary2", "wen2023_corollary2:RECIPE", "Balance of minimisers as L2 regularisation goes to 0."),
        ("wen2023-figure10", "wen2023_figure3:FIGURE10", "Violation and generalisation, trained on prefixes."),
    )
}
"""Each reproduction by its name on the command line, such as ``bhardwaj2021-table1``."""


def recipe_named(name: str) -> Any:
    """Return the `Recipe` of a reproduction."""
    module, _, member = REPRODUCTIONS[name].place.partition(":")
    return getattr(import_module(module), member)
