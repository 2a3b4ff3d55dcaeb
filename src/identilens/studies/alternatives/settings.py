"""Options of alternatives."""

from dataclasses import dataclass
from typing import Annotated, Literal

from identilens.errors import SettingError
from identilens.runs.settings import LIST, NonNegative, Part, Positions, Positive, Tolerances
from identilens.studies.settings import HeadSettings, Outcome, tolerances

Aim = Literal["least", "farthest", "sparsest"]
"""What an alternative is chosen for: little attention on some keys, much elsewhere, or few keys with any at all."""


@dataclass(frozen=True, kw_only=True)
class AlternativeSettings(HeadSettings):
    """Which heads, and which alternatives.

    Attributes:
        realisable: Also search for other queries and keys that give the same output.
        distance: Mean total variation distance that the realisable alternative must reach.
        starts: Random starts for each row in the search for a far alternative. Other starts empty its largest weights.
        seed: Seed of the random numbers.
        outcome: What stays the same: each head's output; or, for one row of a map and within the tolerance, the sum of
            the outputs of the chosen heads of each layer, whose rows then change together, the model's prediction, or
            its final hidden states.
        aim: But for head: what the row is to do: put least attention on the keys, or go farthest from what it is, or
            give the sparsest row, with attention on few keys.
        tolerance: For prediction and states: a share of the row's effect (1%), or a number with its unit
            (0.001nats, 0.01change); 1% by default. For layer: a share of the sum, or a rounding; bfloat16 by default.
        queries: Position (or several, 3,10-12) or token of the row; last by default. For head: the rows that change;
            all by default.
        keys: But for head: positions or tokens whose attention is to go elsewhere; those that hold 90 % of the row's
            attention by default.
        answer: For prediction and states: position or token of the predictions, or states, that count; last for the
            prediction and all states by default.
        together: For prediction and states: change the rows of all chosen heads together.
    """

    realisable: bool = False
    distance: Part = 0.1
    starts: Positive = 8
    seed: NonNegative = 0
    outcome: Outcome = "head"
    aim: Annotated[tuple[Aim, ...], LIST] = ("least",)
    tolerance: Tolerances | None = None
    queries: Positions | None = None
    keys: Positions | None = None
    answer: Positions | None = None
    together: bool = False

    def check(self) -> None:
        """Check that there is one tolerance, which belongs to the outcome."""
        read = tolerances(self.tolerance or ("float32",), self.outcome, "float32")
        if len(read) > 1:
            raise SettingError("tolerance", "with a single value", self.tolerance)
        if self.outcome == "layer" and not read[0].size:
            raise SettingError("tolerance", "above 0 for the output of a layer", self.tolerance)
        if self.realisable and self.queries:
            raise SettingError(
                "realisable", "to be left out with queries: queries and keys make whole maps", True
            )
        if self.together and self.outcome in ("head", "layer"):
            raise SettingError(
                "together", "with the outcome prediction or states only", self.together
            )
