"""The progress of a run: a bar in a notebook or on a terminal, a function, lines in the log, or nothing."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tqdm import tqdm

Progress = Callable[[int, int, str], None]
"""Called with the number of finished units, the total number, and a note on the current step."""

LOG = logging.getLogger("identilens")
"""The log for progress without a terminal; the command line prints it to standard error."""

LOG_EVERY = 60.0
"""Seconds between two lines in the log."""

_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit} after {elapsed}, {remaining} left{postfix}"

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
    notebook = shell is not None and "IPKernelApp" in shell.config
    token = _drawn.set(True)
    try:
        # None in programs without a console.
        if not notebook and (sys.stderr is None or not sys.stderr.isatty()):
            yield _log_lines(unit)
            return
        with tqdm(unit=f" {unit}", total=0, bar_format=_BAR) as bar:

            def update(done: int, total: int, note: str = "") -> None:
                if not bar.total:
                    # What an interrupted run has left took no time in this one.
                    bar.initial = bar.n = done
                bar.total = total
                bar.set_postfix_str(note, refresh=False)
                bar.update(done - bar.n)

            yield update
            bar.refresh()
    finally:
        _drawn.reset(token)


def _log_lines(unit: str) -> Progress:
    """Return a receiver that writes a line a minute into the log."""
    last = time.monotonic()

    def update(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LOG_EVERY:
            last = now
            LOG.info("%d of %d %s %s", done, total, unit, note)

    return update
