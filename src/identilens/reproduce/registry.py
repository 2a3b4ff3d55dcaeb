"""The reproductions by name. Imports nothing heavy: each paper's module is imported when it is used."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

REPRODUCTIONS = {
    "bhardwaj2021-table1": "Accuracy of Con and Add encoders by key size.",
    "bhardwaj2021-figure2": "Rank and nullity by text length, Con encoder.",
    "bhardwaj2021-figure5": "Least logit ranks of random alternatives.",
    "bhardwaj2021-figure6": "Rank and nullity by text length, Add encoder.",
    "brunner2020-figure1": "Raw and effective attention (Figures 1, 5).",
    "brunner2020-figure2": "Token identifiability on MRPC (Figures 2, 7 to 10).",
    "brunner2020-figure3": "Mixing on MRPC (Figures 3, 4, 18 to 25).",
    "brunner2020-figure6": "Raw, effective and null attention of one head.",
    "brunner2020-figure11": "Token identifiability from layer to layer.",
    "brunner2020-figure12": "Layer to layer after fine-tuning on MRPC.",
    "brunner2020-figure13": "Layer to layer after fine-tuning on CoLA.",
    "brunner2020-figure14": "Neighbouring tokens recovered (Figures 14 to 17).",
    "brunner2020-figure26": "Mixing by part of speech (Figures 26 to 37).",
    "brunner2020-figure38": "Token identifiability on CoLA.",
    "brunner2020-figure39": "Token identifiability on MNLI.",
    "brunner2020-figure40": "Mixing on CoLA (Figures 40, 41).",
    "brunner2020-figure42": "Mixing on MNLI (Figures 42, 43).",
    "brunner2020-b2": "Token identifiability by share of training data (B.2).",
    "sun2021": "Effective attention by token type after fine-tuning.",
    "structure2025-figure1": "Cross attention of models that reverse a sequence.",
    "structure2025-figure2": "The structure W by threshold l.",
    "wen2023-table1": "Attention variation by types, depth and layers.",
    "wen2023-figure1": "Attention of standard 2-layer transformers by seed.",
    "wen2023-figure2": "Attention after minimal first layers by seed.",
    "wen2023-figure3": "Balance violation and length generalisation.",
    "wen2023-figure4": "Stack-like heads that are not used (Figures 4 to 6).",
    "wen2023-figure7": "Attention of models trained on prefixes (Figures 7 to 9).",
    "wen2023-figure8": "Attention variation on longer prefixes.",
    "wen2023-footnote4": "Models trained with uniform attention.",
    "wen2023-footnote13": "Attention variation on other prefixes.",
    "wen2023-c7": "Models of the paper's own layer (Eq. 6), trained.",
    "wen2023-corollary2": "Balance of minimisers as L2 regularisation goes to 0.",
    "wen2023-figure10": "Violation and generalisation, trained on prefixes.",
}
"""The help of each reproduction, by its name on the command line: the paper, a hyphen, the table or figure."""


def figure_named(name: str) -> Callable[..., Any]:
    """Return the function that makes a reproduction, whose runs can be resumed from folders under ``out``.

    It is called with ``(settings, out, *, resume, overwrite)``, and with ``ray`` if a cluster can share its runs.
    """
    return resolve_name(f"identilens.reproduce.{name.partition('-')[0]}:FIGURES")[name]
