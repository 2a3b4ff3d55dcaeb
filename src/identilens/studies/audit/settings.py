"""Options of an audit."""

from dataclasses import dataclass
from typing import Literal

from identilens.errors import SettingError
from identilens.runs.settings import NonNegative, Numbers, Positions, Positive, Settings


@dataclass(frozen=True, kw_only=True)
class AuditSettings(Settings):
    """What is audited, and which matrices are saved.

    Attributes:
        layers: Layers, counted from 0 within each kind of attention; all by default.
        queries: Position (or several, 3,10-12) or token of a row; all rows by default. Then every measure is of these
            rows alone, and only they are in memory. A token selects every position where it occurs; last is the last
            row, and negative positions count from the end.
        batch_size: Number of texts in one forward pass.
        max_length: Cut longer texts to this many tokens.
        matrices: Save raw and effective attention of every text.
        examples: Number of texts whose matrices are saved for the report, drawn from those of at most example_length
            tokens; on as many texts, of any length, heads are removed.
        example_length: Largest number of tokens in an example.
        certain_rows: Rows of each map whose certain mass is computed by linear programs (about 40 ms for a row of 100
            keys), of every text. The rows are drawn at random. Default: 4 rows of each head for each of the examples,
            spread over four times as many texts, which are drawn from all (at most 6,144 tokens together).
        effects: How the effect of each head on the model's answer is found in some of these texts: by its removal,
            a run of the model for each head; by an estimate to first order, a few backward passes for all heads; or not
            at all. Default: auto, the removal where heads times tokens are at most 32,768, else the estimate, in texts
            of at most 2,048 tokens.
        seed: Seed of the drawn rows, and of the estimates.
    """

    layers: Numbers | None = None
    queries: Positions | None = None
    batch_size: Positive = 8
    max_length: Positive | None = None
    matrices: bool = False
    examples: NonNegative = 3
    example_length: Positive = 128
    certain_rows: NonNegative | None = None
    effects: Literal["auto", "removal", "estimate", "none"] = "auto"
    seed: NonNegative = 0

    def check(self) -> None:
        """Check that no rows are chosen when matrices are to be saved."""
        if self.matrices and self.queries:
            raise SettingError(
                "queries", "to be left out with matrices, which contain every row", self.queries
            )
