"""Settings of a study: one frozen dataclass that contains each option's default, range and help."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, astuple, dataclass, fields
from functools import cache
from numbers import Integral, Real
from operator import ge, gt, le, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from cyclopts import Parameter

from identilens.errors import SettingError


@dataclass(frozen=True)
class _CheckedHere:
    """Tells pydantic to take any value; cyclopts asks it of every option once something has imported it."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> dict[str, str]:
        return {"type": "any"}


LIST = Parameter(
    converter=lambda _, tokens: ",".join(token.value for token in tokens), n_tokens=1, negative=""
)
"""Marks a tuple whose values are separated by commas on the command line.

The typed text is passed on and parsed here, as in Python; of an option typed again, all.
"""

REPEATED = Parameter(negative="", consume_multiple=False)
"""Marks a tuple whose option is given once for each value on the command line."""

WORDED = Parameter(
    converter=lambda _, tokens: [token.value for token in tokens],
    n_tokens=1,
    negative="",
    json_list=False,
)
"""Marks a tuple of words or objects, of which the command line takes the words, once for each, even "[CLS]"."""

NOT_RECORDED = "does not change the numbers"
"""Marks a setting that is not in the provenance: runs that differ only in it are the same run."""

_MOST_NUMBERS = 100_000
"""Largest number of numbers in a list such as 0-99."""

Kind = Literal["encoder", "decoder", "cross"]
Numbers = Annotated[tuple[int, ...], LIST]
Names = Annotated[tuple[str, ...], REPEATED]
Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]
TwoOrMore = Annotated[int, Ge(2)]
AboveZero = Annotated[float, Gt(0)]
Part = Annotated[float, Gt(0), Lt(1)]
"""A share that is neither nothing nor the whole."""

Positions = Annotated[tuple[int | str, ...], REPEATED]
"""Positions of a text, or tokens."""

Tolerances = Annotated[tuple[float | int | str, ...], LIST]
"""How much may change and count as the same."""

Switch = Annotated[bool, Parameter(negative="")]
"""An option of the command line that is off unless it is typed."""


class Settings:
    """Base of every settings dataclass: values are converted to the types of their fields and checked.

    Sequences and single values become tuples, ``"0,3,5-8"`` becomes numbers. A `Literal` in the field's
    annotation gives the choices, `annotated_types` give the range.
    """

    def __init_subclass__(cls) -> None:
        """Leave the checks of the fields to this class."""
        cls.__annotations__ |= {
            name: Annotated[hint, _CheckedHere()] for name, hint in cls.__annotations__.items()
        }

    def __post_init__(self) -> None:
        """Convert and check the values; raises SettingError, naming the field."""
        for name, hint in hints_of(type(self)).items():
            object.__setattr__(self, name, coerce(name, hint, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Check conditions on several fields; raises SettingError."""

    def recorded(self) -> dict[str, Any]:
        """Return the settings that change the numbers, ready for JSON."""
        values = {
            name: getattr(self, name)
            for name, hint in hints_of(type(self)).items()
            if NOT_RECORDED not in hint.__metadata__
        }
        return json.loads(json.dumps(values, default=str))

    def values_of(self, settings: type["Settings"]) -> dict[str, Any]:
        """Return the values of the fields that other settings have too, by name."""
        return {name: getattr(self, name) for name in hints_of(settings)}

    @classmethod
    def of(cls, settings: Any, options: Mapping[str, Any]) -> Any:
        """Return the settings (the defaults if None) with single options changed.

        Raises:
            SettingError: For an unknown option, listing the known ones, or a value that is not allowed.
        """
        hints = hints_of(cls)
        for name in options:
            if name not in hints:
                raise SettingError(name, f"to be one of the options {', '.join(hints)}", name)
        if not isinstance(settings, Settings | None):
            raise SettingError(
                "settings",
                f"to be {cls.__name__}(...); or give each option by its name",
                settings,
            )
        values = {} if settings is None else settings.values_of(cls)
        values |= {name: coerce(name, hints[name], value) for name, value in options.items()}
        for field in fields(cls):  # pyright: ignore[reportArgumentType] - every settings class is a dataclass
            if field.default is MISSING and field.name not in values:
                raise SettingError(field.name, "to be given", None)
        return cls(**values)


@cache
def hints_of(settings: type) -> dict[str, Any]:
    """Return the annotation of each field of a settings dataclass, with its metadata."""
    hints = get_type_hints(settings, include_extras=True)
    return {field.name: hints[field.name] for field in fields(settings)}


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in "0,3,5-8" or "-2,1", without repetitions; raises ValueError for anything else."""
    numbers: dict[int, None] = {}
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(-?\d+)(?:-(-?\d+))?\s*", piece, re.ASCII)
        if match is None:
            raise ValueError(text)
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 < last + 1 - first <= _MOST_NUMBERS - len(numbers):
            raise ValueError(text)
        numbers |= dict.fromkeys(range(first, last + 1))
    return tuple(numbers)


def coerce(name: str, hint: Any, value: Any) -> Any:
    """Return the value of a setting converted to its type; raises SettingError if that is not possible."""
    kind, metadata, optional = _resolved(hint)
    if optional and value is None:
        return None
    if get_origin(kind) is not tuple:
        return _scalar(name, kind, metadata, value)
    element, inner, _ = _resolved(get_args(kind)[0])
    try:
        values = value
        if isinstance(value, str) and LIST in metadata:
            make = float if element is float else str.strip
            values = parse_numbers(value) if element is int else [*map(make, value.split(","))]
        several = isinstance(values, Iterable) and not isinstance(values, str)
        values = dict.fromkeys(values if several else (values,))
    except (ValueError, TypeError):
        expected = _EXPECTED.get(element, "as one value or several")
        raise SettingError(name, expected, value) from None
    if optional and not values:
        raise SettingError(name, "with at least one value, or left out", value)
    return tuple(_scalar(name, element, (*metadata, *inner), part) for part in values)


_EXPECTED: dict[Any, str] = {
    int: "as numbers and ranges such as 0,3,5-8",
    float: "as numbers separated by commas, such as 0.5,0.9",
}
_KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "as a whole number"),
    float: (Real, "as a number"),
    bool: (bool, "to be True or False"),
    str: (str, "as text"),
    Path: ((str, Path), "as a path"),
}
_BOUNDS = {Ge: (ge, "of at least"), Gt: (gt, "above"), Le: (le, "of at most"), Lt: (lt, "below")}


def _scalar(name: str, kind: Any, metadata: tuple[Any, ...], value: Any) -> Any:
    """Return a single value converted to its type and checked."""
    make: Any = kind
    kinds, words = _KINDS.get(kind, (object, ""))
    is_truth = isinstance(value, bool) and kind in (int, float)
    if is_truth or not isinstance(value, kinds):
        raise SettingError(name, words, value)
    if kind in (int, float, Path):
        # A number may be one of numpy.
        value = make(value)
    if kind is float and not math.isfinite(value):
        raise SettingError(name, "as a finite number", value)
    choices = get_args(kind)
    if get_origin(kind) is Literal and not (isinstance(value, str) and value in choices):
        raise SettingError(name, f"to be {' or '.join(map(str, choices))}", value)
    for bound in metadata:
        if type(bound) in _BOUNDS:
            holds, words = _BOUNDS[type(bound)]
            (limit,) = astuple(bound)
            if not holds(value, limit):
                raise SettingError(name, f"{words} {limit}", value)
    return value


def _resolved(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the type of an annotation, all of its metadata, and whether None is allowed."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        kind, more, optional = _resolved(inner)
        return kind, (*metadata, *more), optional
    options: Any = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if NoneType not in options:
        return hint, (), False
    kind, metadata, _ = _resolved(Any if Any in options else options[0])
    return kind, metadata, True
