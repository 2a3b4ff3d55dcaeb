"""Separation of one thread's capture from other threads that run the same model."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def only_here(hook: Callable[P, R]) -> Callable[P, R | None]:
    """Return a hook of a module that does nothing when another thread calls the module."""
    home = get_ident()

    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return hook(*args, **kwargs) if get_ident() == home else None

    return guarded


class _Held:
    """Attributes that are set while any thread needs them: their previous values, and how many threads need them."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._before: dict[tuple[int, str], tuple[Any, int]] = {}

    def take(self, owner: Any, name: str, value: Any) -> None:
        with self._lock:
            before, count = self._before.get((id(owner), name), (getattr(owner, name), 0))
            self._before[id(owner), name] = before, count + 1
            setattr(owner, name, value)

    def has(self, owner: Any, name: str) -> bool:
        with self._lock:
            return (id(owner), name) in self._before

    def leave(self, owner: Any, name: str) -> None:
        with self._lock:
            before, count = self._before.pop((id(owner), name), (getattr(owner, name), 1))
            if count > 1:
                self._before[id(owner), name] = before, count - 1
            else:
                setattr(owner, name, before)


_held = _Held()


@contextmanager
def attribute(owners: Iterable[Any], name: str, value: Any) -> Iterator[None]:
    """Set an attribute of some objects inside the context, in any number of threads at once.

    The first thread stores the previous value; the last thread restores it.
    """
    taken = []
    try:
        for owner in owners:
            taken.append(owner)
            _held.take(owner, name, value)
        yield
    finally:
        for owner in taken:
            _held.leave(owner, name)


def is_held(owner: Any, name: str) -> bool:
    """Return whether a context of any thread sets an attribute of an object: see `attribute`."""
    return _held.has(owner, name)
