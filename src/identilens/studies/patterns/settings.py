"""Options of scoring patterns."""

from dataclasses import dataclass
from typing import Annotated

from identilens.errors import SettingError
from identilens.runs.settings import LIST, NonNegative, Part, Positive
from identilens.studies.settings import HeadSettings, ToleranceSettings


@dataclass(frozen=True, kw_only=True)
class PatternSettings(ToleranceSettings, HeadSettings):
    """Which patterns of which heads, on how many rows.

    Attributes:
        pattern: Patterns: previous, next, current, first, duplicate, induction, separator, punctuation. Default: all.
        rows: Rows of each text, layer and pattern that the score rests on, drawn by the seed from those that have the
            pattern; the same for all heads of a layer.
        least_score: Score from which on a head is called by the pattern.
        repeated: Tokens of a random sequence that stands twice in a row, as four further texts; 0 for none. Induction
            is usually measured on them.
        seed: Seed of the drawn rows, and of random sequences.
    """

    pattern: Annotated[tuple[str, ...], LIST] = ()
    rows: Positive = 8
    least_score: Part = 0.4
    repeated: NonNegative = 0
    seed: NonNegative = 0

    def check(self) -> None:
        """Check the kind of attention, and that tolerances can be read."""
        if self.kind == "cross":
            words = "to be encoder or decoder: patterns are of self-attention"
            raise SettingError("kind", words, self.kind)
        super().check()
