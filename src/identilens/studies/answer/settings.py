"""Options of measuring answers."""

from dataclasses import dataclass

from identilens.runs.settings import NonNegative, Positive
from identilens.studies.settings import ToleranceSettings


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(ToleranceSettings):
    """How long a generated answer is, and which rows of attention are certified.

    Attributes:
        max_new_tokens: Largest number of tokens that are generated, the most likely one each time. The model's stop
            token ends an answer earlier.
        bounded: Rows of attention whose ends are proven, so many of each layer, drawn by the seed from those of all
            heads and tokens of the answer. Attention itself is measured in all rows.
        seed: Seed of the drawn rows.
    """

    max_new_tokens: Positive = 64
    bounded: NonNegative = 8
    seed: NonNegative = 0
