"""Settings of a study: one frozen dataclass that contains each option's default, range and help."""

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, astuple, fields
from functools import cache
from itertools import islice
from numbers import Integral, Real
from operator import ge, gt, le, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from cyclopts import Parameter

from identilens.errors import SettingError


class _Typed(Parameter):
    """A parameter whose value is typed text, also for pydantic, which cyclopts asks wherever it has been imported."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> dict[str, str]:
        return {"type": "any"}


AS_TYPED = _Typed(converter=lambda _, tokens: tokens[0].value, n_tokens=1, negative="")
"""Lets the command line pass on the typed text, which is parsed here, as in Python."""

LIST = AS_TYPED
"""Marks a tuple whose values are separated by commas on the command line."""

REPEATED = Parameter(negative="", consume_multiple=False)
"""Marks a tuple whose option is given once for each value on the command line."""

NOT_RECORDED = "does not change the numbers"
"""Marks a setting that is not in the provenance: runs that differ only in it are the same run."""

SIZE = "bytes"
"""Marks a number of bytes, which may be written as 512MiB or 2GB."""

_MOST_NUMBERS = 100_000
"""Largest number of numbers in a list such as 0-99."""

_LARGEST = 2**53
"""Largest whole number that is taken; libraries below fail on larger ones, each in its way."""

Kind = Literal["encoder", "decoder", "cross"]
Numbers = Annotated[tuple[int, ...], LIST]
Names = Annotated[tuple[str, ...], REPEATED]
Size = Annotated[int, AS_TYPED, SIZE]


class Settings:
    """Base of every settings dataclass: values are converted to the types of their fields and checked.

    Sequences and single values become tuples, ``"0,3,5-8"`` becomes numbers, ``"256MiB"`` becomes bytes. A `Literal` in
    the field's annotation gives the choices, `annotated_types` give the range.
    """

    def __post_init__(self) -> None:
        """Convert and check the values; raises SettingError, naming the field."""
        for name, hint in hints_of(type(self)).items():
            object.__setattr__(self, name, in_order(name, hint, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Check conditions on several fields; raises SettingError."""

    def recorded(self) -> dict[str, Any]:
        """Return the settings that change the numbers, ready for JSON."""
        hints = hints_of(type(self))
        recorded = [
            name
            for name, hint in hints.items()
            if NOT_RECORDED not in getattr(hint, "__metadata__", ())
        ]
        return {name: _plain(getattr(self, name)) for name in recorded}

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
                f"to be a {cls.__name__}(...); or give each option by its name",
                settings,
            )
        given = {} if settings is None else settings.values_of(cls)
        given |= {name: in_order(name, hints[name], value) for name, value in options.items()}
        for field in fields(cls):  # pyright: ignore[reportArgumentType] - every settings class is a dataclass
            if field.default is MISSING and field.name not in given:
                raise SettingError(field.name, "to be given", None)
        return cls(**given)


@cache
def hints_of(settings: type) -> dict[str, Any]:
    """Return the annotation of each field of a settings dataclass, with its metadata."""
    hints = get_type_hints(settings, include_extras=True)
    return {field.name: hints[field.name] for field in fields(settings)}


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in "0,3,5-8" or "-2,1", without repetitions; raises ValueError for anything else."""
    numbers: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(-?\d+)(?:-(-?\d+))?\s*", piece)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(text)
        span = range(int(match[1]), int(match[2] or match[1]) + 1)
        if len(numbers) + len(span) > _MOST_NUMBERS:
            raise ValueError(text)
        numbers.extend(span)
    return tuple(dict.fromkeys(numbers))


def parse_size(text: str) -> int:
    """Return the number of bytes in "268435456", "256MiB" or "2 GB"; raises ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(text)
    return int(
        float(match[1]) * (1024 if match[3] else 1000) ** " KMG".index(match[2].upper() or " ")
    )


def separated_by_commas(hint: Any) -> bool:
    """Return whether several values of an option are typed with commas between them."""
    kind, metadata = _unwrapped(hint)
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    return AS_TYPED in metadata or any(AS_TYPED in _unwrapped(option)[1] for option in options)


def in_order(name: str, hint: Any, value: Any) -> Any:
    """Return the value of a setting converted to its type; raises SettingError if that is not possible."""
    kind, metadata = _unwrapped(hint)
    optional = get_origin(kind) in (Union, UnionType)
    if optional:
        options = get_args(kind)
        if Any in options or (value is None and NoneType in options):
            return value
        kind, inner = _unwrapped(next(option for option in options if option is not NoneType))
        metadata = (*metadata, *inner)
    value = _converted(name, kind, metadata, value)
    if optional and isinstance(value, tuple) and not value:
        raise SettingError(name, "with at least one value, or left out", value)
    for one in value if isinstance(value, tuple) else (value,):
        _check(name, kind, metadata, one)
    return value


def _converted(name: str, kind: Any, metadata: tuple[Any, ...], value: Any) -> Any:
    try:
        if get_origin(kind) is tuple:
            return _sequence(kind, value, metadata)
        if isinstance(value, str) and SIZE in metadata:
            return parse_size(value)
        if kind is Path:
            return Path(value)
        return _of_python(kind, value)
    except (ValueError, TypeError, OverflowError):
        raise SettingError(
            name, _EXPECTED.get(_shape(kind, metadata), "to have another form"), value
        ) from None


def _sequence(kind: Any, value: Any, metadata: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a tuple field: a pair unchanged, other sequences without repetitions."""
    element, *others = (_unwrapped(one)[0] for one in get_args(kind))
    make: Any = element
    pair = bool(others) and others[0] is not Ellipsis
    if isinstance(value, str) and LIST in metadata:
        if element is int and not pair:
            return parse_numbers(value)
        value = [piece.strip() for piece in re.split("[-,]" if pair else ",", value)]
        value = [make(piece) for piece in value] if element in (int, float) else value
    values = (
        (value,)
        if isinstance(value, str | Real | Path)
        else tuple(islice(value, _MOST_NUMBERS + 1))
    )
    if len(values) > _MOST_NUMBERS:
        raise ValueError("too many")
    values = tuple(
        make(one) if element in (float, Path) else _of_python(element, one) for one in values
    )
    if pair and len(values) != len(others) + 1:
        raise ValueError(values)
    return values if pair else tuple(dict.fromkeys(values))


def _of_python(kind: Any, value: Any) -> Any:
    """Return a number, which may be one of numpy, as Python's own; anything else as it is."""
    is_number = kind in (int, float) and isinstance(value, _KINDS[kind][0])
    return kind(value) if is_number and not isinstance(value, bool) else value


_EXPECTED = {
    "numbers": "as numbers and ranges such as 0,3,5-8",
    "pair": "as two ends such as 400-500",
    "reals": "as numbers separated by commas, such as 0.5,0.9",
    "size": "in bytes, or as a size such as 512MiB or 2GB",
}


def _shape(kind: Any, metadata: tuple[Any, ...]) -> str:
    if SIZE in metadata:
        return "size"
    element = kind
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if get_args(kind)[1] is not Ellipsis:
            return "pair"
    return {int: "numbers", float: "reals"}.get(_unwrapped(element)[0], "")


def _check(name: str, kind: Any, metadata: tuple[Any, ...], value: Any) -> None:
    if get_origin(kind) is tuple:
        kind, inner = _unwrapped(get_args(kind)[0])
        metadata = (*metadata, *inner)
    if kind in _KINDS and (
        not isinstance(value, _KINDS[kind][0]) or (kind is not bool and isinstance(value, bool))
    ):
        raise SettingError(name, _KINDS[kind][1], value)
    if kind is int and not -_LARGEST <= value <= _LARGEST:
        raise SettingError(name, f"of at most {_LARGEST}", value)
    if kind is float and not math.isfinite(value):
        raise SettingError(name, "as a finite number", value)
    if kind in (str, Path) and "\0" in str(value):
        raise SettingError(name, "without null characters", value)
    choices = get_args(kind)
    if get_origin(kind) is Literal and (not isinstance(value, str) or value not in choices):
        raise SettingError(name, f"to be {' or '.join(map(str, choices))}", value)
    for bound in metadata:
        if type(bound) in _BOUNDS:
            holds, words = _BOUNDS[type(bound)]
            (limit,) = astuple(bound)
            if not holds(value, limit):
                raise SettingError(name, f"{words} {limit}", value)


_KINDS: dict[Any, tuple[type, str]] = {
    int: (Integral, "as a whole number"),
    float: (Real, "as a number"),
    bool: (bool, "to be True or False"),
    str: (str, "as text"),
}
_BOUNDS = {Ge: (ge, "of at least"), Gt: (gt, "above"), Le: (le, "of at most"), Lt: (lt, "below")}


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        kind, *metadata = get_args(hint)
        return kind, tuple(metadata)
    return hint, ()


def _plain(value: Any) -> Any:
    return (
        list(value)
        if isinstance(value, tuple)
        else str(value)
        if isinstance(value, Path)
        else value
    )
