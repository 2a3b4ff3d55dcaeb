"""Workers that are processes of this machine."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any

import torch

from identilens.errors import SettingError
from identilens.runs.engines.engine import Done, Engine, Event, Lost, Pool, Ready
from identilens.runs.engines.worker import Job

_PROGRAM = "from identilens.runs.engines.worker import main; main()"


@dataclass(frozen=True)
class Local(Engine):
    """Processes of this machine, which share its cores and take its GPUs in turn.

    Attributes:
        workers: Number of processes.

    Examples:
        >>> import identilens as idl
        >>> engine = idl.Local(workers=2)  # idl.audit(lens, texts, out="run", engine=engine)
        >>> engine
        Local(workers=2)
    """

    workers: int = 2

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError("workers", "of at least 1", self.workers)

    def pool(self, job: Job) -> "LocalPool":
        """Return the pool of workers for a run."""
        return LocalPool(job, self.workers)


@dataclass(frozen=True)
class _Process:
    process: "subprocess.Popen[bytes]"
    connection: Connection
    errors: IO[bytes]

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with {self.process.wait(timeout=60)}{f': {lines[-1]}' if lines else ''}"


class LocalPool(Pool):
    """Each worker is a new Python process, connected by a pair of sockets."""

    def __init__(self, job: Job, workers: int) -> None:
        self._job, self._workers = job, workers
        self._processes: dict[int, _Process] = {}
        self._ready: set[int] = set()

    def start(self, worker: int) -> None:
        """Start a process."""
        ours, theirs = Pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        with theirs:
            command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=self._environment(worker), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        self._processes[worker] = _Process(process, ours, errors)
        self._send(worker, sys.path)
        self._send(worker, self._job)

    def submit(self, worker: int, parts: Sequence[int]) -> None:
        """Hand parts to a worker."""
        self._send(worker, list(parts))

    def events(self) -> Sequence[Event]:
        """Wait until a worker has sent a message, or has died."""
        by_connection: dict[Any, int] = {one.connection: worker for worker, one in self._processes.items()}
        return [self._heard(by_connection[one]) for one in wait(list(by_connection))]

    def close(self) -> None:
        """End all processes."""
        for one in self._processes.values():
            one.process.terminate()
        for one in self._processes.values():
            one.process.wait()
            one.connection.close()
            one.errors.close()
        self._processes.clear()

    def _heard(self, worker: int) -> Event:
        one = self._processes[worker]
        try:
            content = one.connection.recv()
        except (EOFError, OSError):
            why = one.last_words()
            one.connection.close()
            one.errors.close()
            del self._processes[worker]
            return Lost(worker, why)
        if isinstance(content, Exception):
            raise content
        if worker not in self._ready:
            self._ready.add(worker)
            return Ready(worker)
        return Done(worker, content)

    def _send(self, worker: int, content: Any) -> None:
        # The death of a worker is noticed by its closed connection.
        try:
            self._processes[worker].connection.send(content)
        except (BrokenPipeError, ConnectionResetError):
            return

    def _environment(self, worker: int) -> dict[str, str]:
        """Return the environment of a worker: its share of the cores, and one GPU if there are several."""
        shared = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self._workers)), **os.environ}
        shared["PYTHONPATH"] = os.pathsep.join(one for one in sys.path if one)
        if (gpus := torch.cuda.device_count()) > 1:
            shared["CUDA_VISIBLE_DEVICES"] = str(worker % gpus)
        return shared
