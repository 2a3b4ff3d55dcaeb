"""The progress bar of a long run: number done, total, rate, time left, and the current step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function (done, total, note) that draws a bar with rate, time left and the note behind it."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(unit, total=None, rate="", note="")

        def update(done: int, total: int, note: str = "") -> None:
            speed = bar.tasks[0].speed
            rate = "" if not speed else f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"
            bar.update(task, completed=done, total=total, rate=rate, note=note)

        yield update
