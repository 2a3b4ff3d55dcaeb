"""A worker: it loads the study that the driver sends, and computes and writes parts of its run."""

import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from identilens.errors import IdentilensError, InputError
from identilens.runs.differences import differences, version_changes
from identilens.runs.folder import RunFolder
from identilens.runs.manifest import listed
from identilens.runs.provenance import provenance
from identilens.runs.settings import Settings
from identilens.runs.stored import fetch, local_place

SENT = "sent"
"""Subfolder of a run's folder for files that are sent to workers."""


@runtime_checkable
class Sent(Protocol):
    """A replacement that is sent for an input that cannot be sent itself."""

    def received(self, folder: Path) -> Any:
        """Return the input, from this replacement and the files in a folder."""


@dataclass(frozen=True)
class Job:
    """The job of a worker: the study's class, its inputs as they are sent, its settings, and provenance of the run.

    The place is the run's folder, or its URL.
    """

    study: type
    inputs: tuple[Any, ...]
    settings: Settings
    record: dict[str, Any]
    place: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of one part: its duration in seconds, and the error if it failed."""

    part: int
    seconds: float
    error: str = ""


class PartWorker:
    """Computes parts of one run.

    Raises:
        InputError: If the study is not the driver's: another model, other texts, or other versions of libraries.
    """

    def __init__(self, job: Job) -> None:
        folder = local_place(job.place)
        fetch(folder, parts=False)
        inputs = tuple(one.received(folder / SENT) if isinstance(one, Sent) else one for one in job.inputs)
        self.study = job.study(*inputs, settings=job.settings)
        self.study.inputs = inputs
        record = provenance(self.study.name, self.study.identity(), self.study.settings.recorded())
        where = f"a worker on {platform.node()} has other inputs than the run was started with"
        if record["fingerprint"] != job.record["fingerprint"]:
            raise InputError(
                f"{where}: {differences(job.record, record)}. A model changed in memory is to be saved "
                "(save_pretrained) and loaded from there."
            )
        if changes := version_changes(job.record, record):
            raise InputError(f"{where}: {changes}.")
        self.folder = RunFolder(folder, job.record, resume=True, leads=False)
        with listed(self.folder.manifest):
            self.study.begin(self.folder)

    @torch.autocast("cuda", enabled=False)
    @torch.autocast("cpu", enabled=False)
    def run(self, parts: Sequence[int]) -> list[Outcome]:
        """Compute and write some parts, and return the outcome of each."""
        return [self._one(part) for part in parts]

    def _one(self, part: int) -> Outcome:
        start = time.perf_counter()
        try:
            with listed(self.folder.manifest):
                output = self.study.run(part)
                self.folder.write_part(part, output.tables, output.matrices, output.tokens)
        except Exception as error:  # of any kind: the run continues with other parts
            words = str(error) if isinstance(error, IdentilensError) else traceback.format_exc(limit=-3)
            return Outcome(part, time.perf_counter() - start, words or repr(error))
        return Outcome(part, time.perf_counter() - start)


def made_worker(job: Job) -> PartWorker | IdentilensError:
    """Return a worker, or the error for which it cannot be created, which ends the run."""
    try:
        return PartWorker(job)
    except IdentilensError as error:
        return error
    except Exception:  # of any kind: the driver reports it
        return InputError(f"a worker on {platform.node()} cannot be made:\n{traceback.format_exc(limit=-3)}")


def main() -> None:
    """Serve a driver on the connection with the given number, until the driver ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    # A worker ends with its driver, at the latest after its current part.
    try:
        sys.path[:] = connection.recv()
        worker = made_worker(connection.recv())
        if isinstance(worker, IdentilensError):
            connection.send(worker)
            return
        connection.send(None)
        while (parts := connection.recv()) is not None:
            connection.send(worker.run(parts))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)
