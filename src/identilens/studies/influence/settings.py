"""Options of removing heads and keys."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from identilens.errors import SettingError
from identilens.runs.settings import NonNegative, Positions, Positive
from identilens.studies.settings import Outcome, RowSettings


@dataclass(frozen=True, kw_only=True)
class InfluenceSettings(RowSettings):
    """Whose removal is looked at, and what it may change.

    Attributes:
        queries: Position (or several, 3,10-12) or token of a row: its keys are removed, too, one by one. None by
            default.
        outcome: What may change: the prediction, or the final hidden states.
        answer: Position or token of the text whose outcome counts: the prediction of what comes after it, say. All
            positions by default. A classifier has one prediction.
        decision: An answer that follows each text, of one token or several: the predictions of its tokens count, and
            the change of its log probability without each head is measured, too. The space before it may be left out.
        directions: Random directions of an estimate, each one backward pass; 0 for no estimates.
        removed: Heads of each text that are removed: those with the largest estimates. All by default, or 32 where
            more than 512 are chosen; the others have an estimate only.
        seed: Seed of the random directions.
    """

    outcome: Outcome = "prediction"
    answer: Positions | None = None
    decision: str | None = None
    directions: Annotated[int, Ge(0), Le(10_000)] = 16
    removed: Positive | None = None
    seed: NonNegative = 0

    def check(self) -> None:
        """Check that the outcome is the model's, and that heads are chosen by estimates."""
        if self.removed is not None and not self.directions:
            raise SettingError("removed", "only with directions above 0", self.removed)
        if self.outcome in ("head", "layer"):
            raise SettingError("outcome", "prediction or states", self.outcome)
        if self.decision is not None and (self.answer is not None or self.outcome == "states"):
            raise SettingError(
                "decision", "with the outcome prediction and without answer", self.decision
            )
