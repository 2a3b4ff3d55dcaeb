"""What became of a model type that was tried."""

from dataclasses import dataclass
from typing import Literal

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
