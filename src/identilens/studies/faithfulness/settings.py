"""Options of faithfulness."""

from dataclasses import dataclass
from typing import Annotated, Literal

from identilens.runs.settings import LIST, NonNegative, Positive
from identilens.studies.settings import HeadSettings

Intervention = Literal["zero", "renormalise"]


@dataclass(frozen=True, kw_only=True)
class FaithfulnessSettings(HeadSettings):
    """What is explained, and the tests of its explanations.

    Attributes:
        decision: Test the tokens of one decision in place of attention rows: the name of a class, the next token, or an
            answer of several tokens; an empty name is the model's own. The space before a word may be left out. Heads
            and all settings of rows then have no effect.
        draws: Number of random orders of the same parts that each order is tested against; 19 can give p = 0.05.
        maps: Number of attention maps drawn from each text.
        rows: Number of rows drawn from each map.
        interventions: Set weights to zero (zero), or also scale the other weights of the row to sum to 1 (renormalise).
        groups: Sizes of the groups of keys that are removed together.
        searched: Number of keys from which the search for the best and the worst order chooses; never fewer than the
            largest group has.
        alternatives: Number of alternatives drawn of each row.
        seed: Seed of the random numbers.
    """

    decision: str | None = None
    draws: Positive = 19
    maps: Positive = 1
    rows: Positive = 2
    interventions: Annotated[tuple[Intervention, ...], LIST] = ("zero", "renormalise")
    groups: Annotated[tuple[Positive, ...], LIST] = (1, 2, 4, 8)
    searched: Positive = 16
    alternatives: Positive = 4
    seed: NonNegative = 0
