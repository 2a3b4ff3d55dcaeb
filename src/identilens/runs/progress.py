"""The progress of a run: a bar in a notebook or on a terminal, a function, lines in the log, or nothing."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

Progress = Callable[[int, int, str], None]
"""Called with the number of finished units, the total number, and a note on the current step."""

LOG = logging.getLogger("identilens")
"""The log for progress without a terminal; the command line prints it to standard error."""

LOG_EVERY = 60.0
"""Seconds between two lines in the log."""

_OFTEN = 0.1
"""Seconds between two updates in a notebook."""

_drawn: ContextVar[bool] = ContextVar("drawn", default=False)


@contextmanager
def watched(unit: str, progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Yield the receiver of progress: the given function, a bar if one can be shown, else the log; None for False.

    A run inside another one that draws a bar draws none.
    """
    if callable(progress) or progress is False or _drawn.get():
        yield progress if callable(progress) else None
        return
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    token = _drawn.set(True)
    try:
        if shell is not None and "IPKernelApp" in shell.config:
            yield _notebook_bar(unit)
        elif sys.stderr is None or not sys.stderr.isatty():  # None in programs without a console
            yield _log_lines(unit)
        else:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
            )
            with Bar(*columns, console=Console(stderr=True)) as bar:
                task = bar.add_task(unit, total=None, rate="", note="")

                def update(done: int, total: int, note: str = "") -> None:
                    rate = _rate(bar.tasks[0].speed)
                    bar.update(task, completed=done, total=total, rate=rate, note=note)

                yield update
    finally:
        _drawn.reset(token)


def _log_lines(unit: str) -> Progress:
    """Return a receiver that writes a line a minute into the log."""
    began = last = time.monotonic()

    def update(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LOG_EVERY:
            last = now
            spent = timedelta(seconds=int(now - began))
            more = f", {note}" if note else ""
            LOG.info("%s of %s %s after %s%s", done, total, unit, spent, more)

    return update


def _notebook_bar(unit: str) -> Progress:
    """Return a receiver that draws a bar in the output of a notebook's cell."""
    display: Any = import_module("IPython.display")
    began, last = time.monotonic(), 0.0

    def picture(done: int, total: int, note: str) -> Any:
        spent = time.monotonic() - began
        words = [f"{unit} {done}/{total}", str(timedelta(seconds=int(spent)))]
        if 0 < done < total:
            left = timedelta(seconds=int(spent * (total - done) / done))
            words += [_rate(done / max(spent, 1e-9)), f"{left} left"]
        label = escape(", ".join([*words, note] if note else words))
        bar = f'<progress max="{max(total, 1)}" value="{done}"></progress>'
        return display.HTML(f"<label>{bar} {label}</label>")

    handle = display.display(picture(0, 0, ""), display_id=True)

    def update(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= _OFTEN:
            last = now
            handle.update(picture(done, total, note))

    return update


def _rate(speed: float | None) -> str:
    if not speed:
        return ""
    return f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"
