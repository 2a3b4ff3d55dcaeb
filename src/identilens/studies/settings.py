"""Options that several studies share, and the tolerances among them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from identilens.errors import SettingError
from identilens.runs.settings import Kind, Numbers, Positions, Positive, Settings, Tolerances


@dataclass(frozen=True, kw_only=True)
class HeadSettings(Settings):
    """Which heads.

    Attributes:
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        max_length: Cut longer texts to this many tokens.
        kind: Kind of attention; all kinds of the model by default. Layers count from 0 within each kind.
    """

    layers: Numbers | None = None
    heads: Numbers | None = None
    max_length: Positive | None = None
    kind: Kind | None = None


@dataclass(frozen=True, kw_only=True)
class RowSettings(HeadSettings):
    """Which rows of which heads.

    Attributes:
        queries: Position (or several, 3,10-12) or token of a row; all rows by default. A token selects every position
            where it occurs; last is the last row, and negative positions count from the end.
    """

    queries: Positions | None = None


Outcome = Literal["head", "layer", "states", "prediction"]


Answered = Literal["states", "prediction"]
"""An outcome of the whole model."""


ROUNDING = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24, "float64": 2**-53}
"""Unit roundoff of a precision: the relative error of a number that is rounded to it."""


DEFAULTS = {
    "head": ("bfloat16", "0"),
    "layer": ("bfloat16", "1%"),
    "states": ("1%",),
    "prediction": ("1%",),
}
"""Tolerances where none are given, by outcome; findings, marks and groups rest on the first."""


UNITS = {"prediction": "nats", "states": "relative change"}
"""Unit of the change of an outcome."""


_OUTCOMES = {"nats": "prediction", "change": "states"}
"""The outcome of each unit of a tolerance."""


_FORM = re.compile(r"(\d+\.?\d*(?:e-\d+)?|\.\d+)\s*(%|nats|change)?")


_EXPECTED = (
    "as 0, a share such as 0.01 or 1%, or model, bfloat16, float16 or float32; also with the unit nats (prediction) or "
    "change (states) of that outcome"
)


@dataclass(frozen=True)
class Tolerance:
    """How much an outcome may change and count as the same.

    Attributes:
        name: As tables have it: 0, 1%, bfloat16, 0.001nats, 0.01change.
        size: The number.
        unit: Empty for a share: of the length of the output of the head or layer, or of the row's effect on states
            and prediction. Else nats (prediction) or change (relative change of the states).
    """

    name: str
    size: float
    unit: str = ""


def tolerances(
    asked: Iterable[float | int | str] | None, outcome: Outcome, precision: object
) -> list[Tolerance]:
    """Return tolerances by the way they are written; ``model`` is the model's precision.

    Raises:
        SettingError: For one that cannot be read, or whose unit is not the outcome's.
    """
    read = {}
    for tolerance in DEFAULTS[outcome] if asked is None else asked:
        name = str(precision if tolerance == "model" else tolerance).strip().removeprefix("torch.")
        match = _FORM.fullmatch(name)
        number, unit = match.groups("") if match else ("", "")
        if not (match or name in ROUNDING) or _OUTCOMES.get(unit, outcome) != outcome:
            raise SettingError("tolerance", _EXPECTED, tolerance)
        size = float(number) / (100 if unit == "%" else 1) if match else ROUNDING[name]
        unit = unit.strip("%")
        if match:
            name = f"{size:g}{unit}" if unit or not size else f"{100 * size:g}%"
        read[name] = Tolerance(name, size, unit)
    return list(read.values())


@dataclass(frozen=True, kw_only=True)
class ToleranceSettings(Settings):
    """How much each head's output may change.

    Attributes:
        tolerance: How much each head's output may change and count as the same: 0, a share (0.01, 1%) or a rounding
            (model, bfloat16, float16, float32). Default: bfloat16 and 0. Findings rest on the first.
    """

    tolerance: Tolerances | None = None

    def check(self) -> None:
        """Check that tolerances can be read."""
        self.read_tolerances("float32")

    def read_tolerances(self, precision: object) -> list[Tolerance]:
        """Return the tolerances; `DEFAULTS` if there are none."""
        return tolerances(self.tolerance, "head", precision)
