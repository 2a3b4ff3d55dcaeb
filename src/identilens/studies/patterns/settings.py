"""Options of scoring patterns."""

import re
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated

from identilens.errors import SettingError
from identilens.runs.settings import LIST, NonNegative, Part, Positive
from identilens.studies.settings import KindSettings, ToleranceSettings

ARCS = "arcs"
"""The name that stands for all dependency relations of a treebank, in both directions."""


ARC = re.compile(r"(\S+) (to|from) head")
"""A pattern of one relation: from a word to its head, or from the head to the word."""


@dataclass(frozen=True, kw_only=True)
class PatternSettings(ToleranceSettings, KindSettings):
    """Which patterns of which heads, on how many rows.

    Attributes:
        pattern: Patterns: previous, next, current, first, duplicate, induction, separator, punctuation. Default: all.
            Of sentences from a treebank also arcs, or single relations, such as "nsubj to head" or "nsubj from head".
        rows: Rows (or arcs) of each text, layer and pattern that the score rests on, drawn by the seed from those that
            have the pattern; the same for all heads of a layer.
        least_score: Score from which on a head is called by the pattern.
        repeated: Tokens of a random sequence that stands twice in a row, as further texts; 0 for none. Induction is
            usually measured on them.
        sequences: Number of such texts.
        seed: Seed of the drawn rows, and of random sequences.
    """

    pattern: Annotated[tuple[str, ...], LIST] = ()
    rows: Positive = 8
    least_score: Part = 0.4
    repeated: NonNegative = 0
    sequences: Positive = 4
    seed: NonNegative = 0

    def check(self) -> None:
        """Check the names of the patterns, and that tolerances can be read."""
        if self.pattern:
            names = [*resolve_name("identilens.measures.attention:PATTERNS"), ARCS]
            if not all(one in names or ARC.fullmatch(one) for one in self.pattern):
                words = f"as some of {', '.join(names)}, or a relation such as 'nsubj to head'"
                raise SettingError("pattern", words, self.pattern)
        if self.kind == "cross":
            words = "to be encoder or decoder: patterns are of self-attention"
            raise SettingError("kind", words, self.kind)
        super().check()
