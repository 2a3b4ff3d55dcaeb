"""The driver of a run on several workers: it hands out parts, counts their outcomes, and replaces dead workers."""

import json
from collections import Counter, deque
from collections.abc import Callable, Sequence

from identilens.errors import CheckFailedError, InputError
from identilens.runs.engines.engine import Done, Engine, Lost, Pool, Ready
from identilens.runs.engines.worker import Job, Outcome
from identilens.runs.files import write_text
from identilens.runs.folder import RunFolder

FAILED = "failed.jsonl"

_TRIES = 3
"""Attempts for a part, and largest number of workers that die in a row before they have done a part."""

_BATCH_SECONDS = 1.0
"""Duration of the work that is handed out at a time, if parts are shorter."""

Told = Callable[[int, str], None]
"""Called with the number of a finished part and the state of the workers."""


class Driver:
    """Runs the parts that are missing in a folder.

    Args:
        job: The job of the workers.
        engine: The engine that starts the workers.
        sizes: Number of units in each part.
        unit: Name of the unit, for messages.
        told: Called after each part.
    """

    def __init__(self, job: Job, engine: Engine, sizes: Sequence[int], unit: str, told: Told) -> None:
        self._job, self._engine, self._sizes, self._unit, self._told = job, engine, sizes, unit, told
        self._has: Callable[[int], bool] = lambda _: False
        self._todo: deque[int] = deque()
        self._running: dict[int, list[int]] = {}
        self._tries: Counter[int] = Counter()
        self._failed: dict[int, str] = {}
        self._alive: set[int] = set()
        self._idle: list[int] = []
        self._started = self._lost = self._lost_in_a_row = 0
        self._seconds = 0.0

    def run(self, folder: RunFolder) -> None:
        """Compute all parts that are missing.

        Raises:
            CheckFailedError: If parts failed three times; ``failed.jsonl`` names them. All others are saved.
            InputError: If several workers in a row die before they have done a part.
        """
        self._has = folder.has
        self._todo.extend(part for part in range(len(self._sizes)) if not self._has(part))
        for part in set(range(len(self._sizes))) - set(self._todo):
            self._told(part, "")
        try:
            if self._todo:
                self._work()
        finally:
            # Workers that were killed leave temporary files.
            folder.manifest.remove_unfinished()
        if self._failed:
            self._tell_failed(folder)

    def _work(self) -> None:
        with self._engine.pool(self._job) as pool:
            for _ in range(min(self._engine.workers, len(self._todo))):
                self._start(pool)
            while self._todo or self._running:
                for event in pool.events():
                    self._take(pool, event)

    def _take(self, pool: Pool, event: Ready | Done | Lost) -> None:
        if isinstance(event, Lost):
            self._lose(pool, event)
            return
        self._alive.add(event.worker)
        self._idle.append(event.worker)
        if isinstance(event, Done):
            self._running.pop(event.worker, None)
            for outcome in event.outcomes:
                self._count(outcome)
        while self._todo and self._idle:
            self._hand_out(pool, self._idle.pop(0))

    def _count(self, outcome: Outcome) -> None:
        if outcome.error:
            self._try_again(outcome.part, outcome.error)
            return
        self._seconds = self._seconds or outcome.seconds
        self._finish(outcome.part)

    def _finish(self, part: int) -> None:
        self._lost_in_a_row = 0
        self._told(part, self._state())

    def _try_again(self, part: int, why: str) -> None:
        self._tries[part] += 1
        if self._tries[part] < _TRIES:
            self._todo.append(part)
        else:
            self._failed[part] = why

    def _lose(self, pool: Pool, event: Lost) -> None:
        self._alive.discard(event.worker)
        self._idle = [worker for worker in self._idle if worker != event.worker]
        self._lost += 1
        self._lost_in_a_row += 1
        parts = self._running.pop(event.worker, [])
        if not parts and self._lost_in_a_row > _TRIES:
            raise InputError(f"workers die before they do anything: the last one {event.why}")
        missing = [part for part in parts if not self._has(part)]
        for part in set(parts) - set(missing):
            self._finish(part)
        # The first part that is missing may have caused the death; the others had not begun.
        if missing:
            self._todo.extendleft(reversed(missing[1:]))
            self._try_again(missing[0], f"its worker died: {event.why}")
        if self._todo:
            self._start(pool)

    def _start(self, pool: Pool) -> None:
        pool.start(self._started)
        self._started += 1

    def _hand_out(self, pool: Pool, worker: int) -> None:
        # Batches become smaller towards the end, so that all workers finish at about the same time.
        fair = max(1, len(self._todo) // (4 * self._engine.workers))
        fitting = int(_BATCH_SECONDS / self._seconds) if self._seconds else 1
        parts = [self._todo.popleft() for _ in range(min(len(self._todo), max(1, min(fair, fitting))))]
        self._running[worker] = parts
        pool.submit(worker, parts)

    def _state(self) -> str:
        lost = f", {self._lost} lost" if self._lost else ""
        return f"{len(self._alive)} of {self._engine.workers} workers{lost}"

    def _tell_failed(self, folder: RunFolder) -> None:
        starts = [sum(self._sizes[:part]) for part in self._failed]
        rows = [
            {"part": part, self._unit: [start, start + self._sizes[part] - 1], "tries": _TRIES, "error": error}
            for (part, error), start in zip(sorted(self._failed.items()), sorted(starts), strict=True)
        ]
        write_text(folder.path / FAILED, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        raise CheckFailedError(
            f"{len(rows)} of {len(self._sizes)} parts failed {_TRIES} times; {folder.path / FAILED} names them. The "
            f"first: {rows[0]['error'].strip().splitlines()[-1]} All others are saved: --resume tries these again."
        )
