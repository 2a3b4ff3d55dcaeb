"""Options of rollout."""

from dataclasses import dataclass

from identilens.runs.settings import Positions, Positive
from identilens.studies.settings import ToleranceSettings


@dataclass(frozen=True, kw_only=True)
class RolloutSettings(ToleranceSettings):
    """Whose rollout is bounded, and how nearly the heads' outputs must stay.

    Attributes:
        queries: Position (or several, 3,10-12) or token of a row; all rows by default. A token selects every position
            where it occurs; last is the last row, and negative positions count from the end.
        targets: Position or token whose value is bounded (with a tolerance above 0, weights and values of later
            layers are held as they are); all tokens of the text by default, which also bounds ranks.
        witnesses: Save maps that reach both ends of each target at the first tolerance, for all queries at once, and
            put them into the model.
        max_length: Cut longer texts to this many tokens.
    """

    queries: Positions | None = None
    targets: Positions | None = None
    witnesses: bool = False
    max_length: Positive | None = None
