"""A study made for tests: squares of numbers, a part each; all that a new study has to bring."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import polars as pl
import torch
from annotated_types import Ge, Lt

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.runs.provenance import Identity
from identilens.runs.result import Finding, Result
from identilens.runs.settings import LIST, NOT_RECORDED, Numbers, Settings
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import Tables, table_of


@dataclass(frozen=True, kw_only=True)
class ToySettings(Settings):
    """What is squared.

    Attributes:
        layers: Numbers to square.
        words: Words to write beside them.
        share: A share.
        memory: Bytes to use.
        fail: Part that fails; none by default.
        seed: Of nothing.
    """

    layers: Numbers | None = None
    words: Annotated[tuple[Literal["odd", "even"], ...], LIST] = ("odd", "even")
    share: Annotated[float, Ge(0), Lt(1)] = 0.5
    memory: Annotated[int, NOT_RECORDED] = 1024
    fail: Annotated[int | None, NOT_RECORDED] = None
    seed: int = 0


_WORDS = """\
Each number by itself; the squares add up to {total:g}.
Nothing is known of {unknown}.
"""


@dataclass(frozen=True, kw_only=True)
class Toy(Result):
    """Squares.

    Attributes:
        table: One row a number.
        notes: One row a word.
    """

    analysis: ClassVar = "toy"
    title: ClassVar = "Toy"
    schema: ClassVar = {
        "table": {"number": pl.Int64, "square": pl.Float64},
        "notes": {"word": pl.String},
    }

    words: ClassVar = {"square": "Square (of {total:g} in all): the number times itself"}
    views: ClassVar = {
        "squares": View(lines, ("number", "square"), title="Squares", text=_WORDS, listed=True),
        "words": View(title="Words", table="notes", listed=True),
        "missing": View(lines, ("number", "none"), table="without", title="Nothing to draw"),
    }

    notes: pl.DataFrame

    def without(self) -> pl.DataFrame:
        return self.table.with_columns(none=pl.lit(None, pl.Float64))

    def summary(self) -> Finding:
        total = self.table["square"].sum()
        return Finding.of(
            "The squares add up to {total:g}.\nNothing is {unknown}.",
            "{total:g} | in all",
            total=total,
            unknown=None,
        )


class ToyStudy(Study[ToySettings, Toy]):
    """Square some numbers.

    A number takes a part.
    """

    name = "toy"
    unit = "numbers"
    settings_type = ToySettings
    result_type = Toy
    runs: ClassVar[list[int]] = []

    def __init__(self, settings: ToySettings) -> None:
        self.settings = settings
        self.numbers = settings.layers or (1, 2, 3)

    def identity(self) -> Identity:
        return Identity({"name": "toy", "digest": "0"}, [str(number) for number in self.numbers])

    def sizes(self) -> Sequence[int]:
        return [1] * len(self.numbers)

    def run(self, part: int) -> Output:
        if part == self.settings.fail:
            raise KeyboardInterrupt
        self.runs.append(part)
        self.tell(f"number {self.numbers[part]}")
        number = self.numbers[part]
        tables = {
            "table": table_of(
                Toy.schema["table"], [{"number": number, "square": float(number) ** 2}]
            ),
            "notes": table_of(
                Toy.schema["notes"], [{"word": word} for word in self.settings.words]
            ),
        }
        matrices = {f"text{part}.layer0.head0.encoder.raw": torch.full((2, 2), float(number))}
        return Output(tables, matrices, {part: {"encoder": ["a", "b"]}})

    def finish(self, tables: Tables) -> Output:
        return Output({**tables, "notes": tables["notes"].unique(maintain_order=True)})


toy = study_function(ToyStudy, "toy")
