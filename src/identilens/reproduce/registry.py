"""The reproductions by name, each imported when it is called. Imports nothing heavy itself."""

from dataclasses import dataclass
from pkgutil import resolve_name
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
        ("brunner2020-figure1", "brunner2020_figure1:RECIPE", "Raw and effective attention (Figures 1, 5)."),
        ("brunner2020-figure2", "brunner2020_figure2:FIGURE2", "Token identifiability on MRPC (Figures 2, 7 to 10)."),
        ("brunner2020-figure3", "brunner2020_figure3:FIGURE3", "Mixing on MRPC (Figures 3, 4, 18 to 25)."),
        ("brunner2020-figure6", "brunner2020_figure6:RECIPE", "Raw, effective and null attention of one head."),
        ("brunner2020-figure11", "brunner2020_figure2:FIGURE11", "Token identifiability from layer to layer."),
        ("brunner2020-figure12", "brunner2020_figure12:FIGURE12", "Layer to layer after fine-tuning on MRPC."),
        ("brunner2020-figure13", "brunner2020_figure12:FIGURE13", "Layer to layer after fine-tuning on CoLA."),
        ("brunner2020-figure14", "brunner2020_figure2:FIGURE14", "Neighbouring tokens recovered (Figures 14 to 17)."),
        ("brunner2020-figure26", "brunner2020_figure3:FIGURE26", "Mixing by part of speech (Figures 26 to 37)."),
        ("brunner2020-figure38", "brunner2020_figure2:FIGURE38", "Token identifiability on CoLA."),
        ("brunner2020-figure39", "brunner2020_figure2:FIGURE39", "Token identifiability on MNLI."),
        ("brunner2020-figure40", "brunner2020_figure3:FIGURE40", "Mixing on CoLA (Figures 40, 41)."),
        ("brunner2020-figure42", "brunner2020_figure3:FIGURE42", "Mixing on MNLI (Figures 42, 43)."),
        ("brunner2020-b2", "brunner2020_figure2:B2", "Token identifiability by share of training data (B.2)."),
        ("sun2021", "sun2021:RECIPE", "Effective attention by token type after fine-tuning."),
        ("faithfulness-tasks", "faithfulness_tasks:RECIPE", "Are explanations of fine-tuned classifiers faithful."),
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
    return resolve_name(REPRODUCTIONS[name].place)
