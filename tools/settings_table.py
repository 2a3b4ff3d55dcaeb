"""Tables of settings for the reference: each with its type, its default, its range and what it is."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, astuple, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from identilens.runs.settings import SIZE, Settings, hints_of

HEAD = """\
<div class="settings" markdown>

| setting | type | default | range | what it is |
|---|---|---|---|---|
"""
_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
_WORDS = {int: "whole number", float: "number", bool: "yes or no", str: "text", Path: "path"}


def settings_table(*kinds: type[Settings]) -> str:
    """Return the fields of settings dataclasses as one table, in their order."""
    rows = "".join(
        row(field, hints_of(kind)[field.name], told(kind)[field.name])
        for kind in kinds
        for field in fields(kind)  # pyright: ignore[reportArgumentType] - every settings class is a dataclass
    )
    return f"{HEAD}{rows}\n</div>"


def row(field: Any, hint: Any, words: str) -> str:
    """Return the row of a setting.

    Raises:
        ValueError: For a setting whose docstring says nothing of it.
    """
    if not words:
        raise ValueError(f"the docstring of its class does not say what {field.name} is")
    kind, metadata, _ = resolved(hint)
    cells = [f"`{field.name}`", type_words(kind, metadata), default(field)]
    cells += [limits(kind, metadata), words]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def resolved(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the type of an annotation without None, its metadata, and whether it may be None."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        kind, more, optional = resolved(inner)
        return kind, (*metadata, *more), optional
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if NoneType not in options:
        return hint, (), False
    inner: Any = Union[tuple(one for one in options if one is not NoneType)]  # noqa: UP007 - made of a list
    return *resolved(inner)[:2], True


def type_words(kind: Any, metadata: Sequence[Any]) -> str:
    """Return the type of a setting in words."""
    if SIZE in metadata:
        return "bytes, or a size such as 512MiB"
    if get_origin(kind) is tuple:
        element, *rest = get_args(kind)
        inner, more, _ = resolved(element)
        words = type_words(inner, more)
        return f"two ends: {words}" if rest != [Ellipsis] else f"list: {words}"
    if get_origin(kind) is Literal:
        return "choice"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_words(one, ()) for one in get_args(kind)))
    return _WORDS.get(kind, "as described")


def default(field: Any) -> str:
    """Return the default of a setting as it is typed."""
    value = field.default if field.default is not MISSING else field.default_factory
    if value is MISSING:
        return "**required**"
    if value is None or value == ():
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"`{one:g}`" if isinstance(one, float) else f"`{one}`" for one in values)


def limits(kind: Any, metadata: Sequence[Any]) -> str:
    """Return the range of a setting, or its choices."""
    if get_origin(kind) is tuple:
        inner, more, _ = resolved(get_args(kind)[0])
        return limits(inner, (*metadata, *more))
    if get_origin(kind) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(kind))
    bounds = [bound for bound in metadata if type(bound) in _SIGNS]
    return ", ".join(f"{_SIGNS[type(bound)]} {astuple(bound)[0]}" for bound in bounds)


def told(kind: type) -> dict[str, str]:
    """Return what the docstrings of a settings class, and of those that it extends, say of each field."""
    words: dict[str, str] = {field.name: "" for field in fields(kind)}
    for one in reversed(kind.__mro__):
        if is_dataclass(one):
            words |= sections(inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2])
    return words


def sections(block: str) -> dict[str, str]:
    """Return the entries ``name: words`` of a docstring's section, in which longer ones go on further in."""
    entries: dict[str, str] = {}
    for name, words in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", block, re.MULTILINE):
        entries[name] = " ".join(words.split())
    return entries
