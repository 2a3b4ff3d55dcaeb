"""The progress of a run: a bar, a function, or nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

Progress = Callable[[int, int, str], None]
"""Called with the number of finished units, the total number, and a note on the current step."""

EVERY = 60.0
"""Seconds between two bars where nothing is drawn anew, such as in a file."""

_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit} after {elapsed}, {remaining} left{postfix}"

_drawn: ContextVar[bool] = ContextVar("drawn", default=False)


@contextmanager
def watched(unit: str, progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Yield the receiver of progress: the given function or a bar; None for False.

    A run inside another one that draws a bar draws none. Without a terminal or notebook a bar is written every minute.
    """
    if callable(progress) or progress is False or _drawn.get():
        yield progress if callable(progress) else None
        return
    # None in programs without a console.
    none = sys.stderr is None
    moves = "ipykernel" in sys.modules or (not none and sys.stderr.isatty())
    times = () if moves else ("delay", "mininterval", "maxinterval")
    options: dict[str, Any] = dict.fromkeys(times, EVERY)
    token = _drawn.set(True)
    try:
        with tqdm(unit=f" {unit}", total=0, bar_format=_BAR, disable=none, **options) as bar:

            def update(done: int, total: int, note: str = "") -> None:
                if not bar.total:
                    # What an interrupted run has left took no time in this one.
                    bar.initial = bar.n = done
                bar.total = total
                bar.set_postfix_str(note, refresh=False)
                bar.update(done - bar.n)

            yield update
    finally:
        _drawn.reset(token)
