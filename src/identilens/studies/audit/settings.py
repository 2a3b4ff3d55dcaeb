"""Options of an audit."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from identilens.errors import SettingError
from identilens.runs.settings import Numbers, Settings


@dataclass(frozen=True, kw_only=True)
class AuditSettings(Settings):
    """What is audited, and which matrices are kept.

    Attributes:
        layers: Layers, counted from 0 within each kind of attention; all by default.
        batch_size: Texts in one forward pass.
        max_length: Cut longer texts to this many tokens.
        stream: Hold weights in blocks of rows: always, never, or auto for texts of more than 1,024 tokens.
        matrices: Keep raw and effective attention of every text.
        examples: Keep them for so many texts, the longest that are not above example_length, for the report.
        example_length: Most tokens of an example.
        certain_rows: Rows of each map, drawn by the seed, whose certain mass is found by linear programs (about 20 ms
            a row of 100 keys); by default 4 for the examples and none for other texts.
        seed: Draws the rows.
        value_bias: Leave the bias in the values (what the weights mix), or take it out.
    """

    layers: Numbers | None = None
    batch_size: Annotated[int, Ge(1)] = 8
    max_length: Annotated[int | None, Ge(1)] = None
    stream: Literal["auto", "always", "never"] = "auto"
    matrices: bool = False
    examples: Annotated[int, Ge(0)] = 3
    example_length: Annotated[int, Ge(1)] = 128
    certain_rows: Annotated[int | None, Ge(0)] = None
    seed: Annotated[int, Ge(0)] = 0
    value_bias: Literal["in", "out"] = "in"

    def check(self) -> None:
        """Check that weights which are to be kept are held."""
        if self.matrices and self.stream == "always":
            raise SettingError("stream", "auto or never with matrices, which hold every weight", self.stream)
