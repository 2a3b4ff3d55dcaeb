"""Functions whose modules are imported when they are called: help and mistakes in arguments need none of them."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any


def called(path: str) -> Callable[..., Any]:
    """Return a function that calls another one, given by its module and name with a colon between."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return resolve_name(path)(*args, **kwargs)

    return function
