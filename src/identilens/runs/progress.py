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
    if callable(progress):
        yield progress
    elif progress is False or _drawn.get():
        yield None
    else:
        token = _drawn.set(True)
        try:
            if _in_notebook():
                yield _NotebookBar(unit)
            elif not _on_terminal():
                yield _LogLines(unit)
            else:
                with _terminal_bar(unit) as bar:
                    yield bar
        finally:
            _drawn.reset(token)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def _on_terminal() -> bool:
    # Programs without a console have no standard error.
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _terminal_bar(unit: str) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(unit, total=None, rate="", note="")

        def update(done: int, total: int, note: str = "") -> None:
            bar.update(task, completed=done, total=total, rate=_rate(bar.tasks[0].speed), note=note)

        yield update


class _LogLines:
    """A line a minute in the log, where nothing shows a bar."""

    def __init__(self, unit: str) -> None:
        self.unit, self.began = unit, time.monotonic()
        self.last = self.began

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Write a line, unless one was written within the last minute."""
        now = time.monotonic()
        if now - self.last < LOG_EVERY:
            return
        self.last = now
        spent = timedelta(seconds=int(now - self.began))
        LOG.info(
            "%s of %s %s after %s%s", done, total, self.unit, spent, f", {note}" if note else ""
        )


class _NotebookBar:
    """A bar in the output of a notebook's cell."""

    def __init__(self, unit: str) -> None:
        display: Any = import_module("IPython.display")
        self.unit, self.html, self.began, self.last = unit, display.HTML, time.monotonic(), 0.0
        self.handle = display.display(self._picture(0, 0, ""), display_id=True)

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Draw the bar, unless it was drawn a moment ago."""
        now = time.monotonic()
        if done == total or now - self.last >= _OFTEN:
            self.last = now
            self.handle.update(self._picture(done, total, note))

    def _picture(self, done: int, total: int, note: str) -> Any:
        spent = time.monotonic() - self.began
        words = [f"{self.unit} {done}/{total}", str(timedelta(seconds=int(spent)))]
        if 0 < done < total:
            words += [
                _rate(done / max(spent, 1e-9)),
                f"{timedelta(seconds=int(spent * (total - done) / done))} left",
            ]
        words = escape(", ".join([*words, note] if note else words))
        return self.html(
            f'<label><progress max="{max(total, 1)}" value="{done}"></progress> {words}</label>'
        )


def _rate(speed: float | None) -> str:
    return "" if not speed else f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"
