"""The lock on a run in object storage: a numbered object that its owner creates and renews.

The highest number is the lock. To take the lock, a process creates the object with the next number; this succeeds for
one process only. It may do so if there is no lock, or if the owner is dead: a process of this machine that has ended,
or one that has not renewed its lock for five minutes. Clocks of machines must agree within a few minutes.
"""

import json
import os
import platform
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from identilens.errors import OutputFolderError
from identilens.runs.manifest import LOCK
from identilens.runs.mirror import Mirror

BEAT = 30.0
"""Seconds between renewals."""

DEAD = 300.0
"""Seconds without a renewal after which an owner counts as dead."""


class StoredLock:
    """A lock, from its construction until it is released.

    Raises:
        OutputFolderError: If another process has the lock, or the storage cannot be used.
    """

    def __init__(self, mirror: Mirror, place: Path) -> None:
        self._mirror, self._place = mirror, place
        self._folder = mirror.within(place, f"{LOCK}/")
        older = self._numbers()
        if older:
            self._refuse_living(older[-1])
        self._number = older[-1] + 1 if older else 1
        if not mirror.store.create(self._name(self._number), self._content()):
            raise OutputFolderError(self._refused("a process that has just begun"))
        if self._numbers()[-1:] != [self._number]:
            mirror.store.remove([self._name(self._number)])
            raise OutputFolderError(self._refused("a process that has just begun"))
        mirror.store.remove(map(self._name, older))
        self._renewed, self._end = time.monotonic(), Event()
        self._thread = Thread(target=self._beat, daemon=True, name="identilens-lock")
        self._thread.start()
        mirror.check = self.check

    def check(self) -> None:
        """Raise OutputFolderError if the lock was lost because it could not be renewed in time."""
        if time.monotonic() - self._renewed > 2 * BEAT:
            self._renew()

    def release(self) -> None:
        """Release the lock."""
        self._end.set()
        self._thread.join()
        self._mirror.check = lambda: None
        self._mirror.store.remove(self._name(number) for number in self._numbers() if number <= self._number)

    def _beat(self) -> None:
        while not self._end.wait(BEAT):
            try:
                self._renew()
            except OutputFolderError:  # raised at the next write, if the network is still down
                continue

    def _renew(self) -> None:
        if self._numbers()[-1:] != [self._number]:
            raise OutputFolderError(
                f"{self._place} was taken over by another run, or removed, while this run could not renew its lock. "
                "Check it before you run the same command again."
            )
        self._mirror.store.write(self._name(self._number), self._content())
        self._renewed = time.monotonic()

    def _numbers(self) -> list[int]:
        names = [name.rpartition("/")[2] for name in self._mirror.store.names(self._folder)]
        return sorted(int(name) for name in names if name.isdigit())

    def _name(self, number: int) -> str:
        return f"{self._folder}{number:09d}"

    def _refuse_living(self, number: int) -> None:
        content = self._mirror.store.read([self._name(number)])
        try:
            owner: dict[str, Any] = json.loads(content[self._name(number)])
            age = time.time() - owner["time"]
            here = owner["machine"] == _machine() and owner["machine"]
            alive = _started(owner["process"]) == owner["started"] if here else age < DEAD
        except (ValueError, KeyError, TypeError):  # released meanwhile, or no lock
            return
        if alive:
            words = f"process {owner['process']} on {owner['node']}, lock renewed {max(0, age):.0f} s ago"
            raise OutputFolderError(self._refused(words))

    def _refused(self, owner: str) -> str:
        return (
            f"another run is writing to {self._place} ({owner}). Wait until it ends, or choose another folder; "
            f"a run that has not renewed its lock for {DEAD / 60:.0f} minutes counts as dead."
        )

    def _content(self) -> bytes:
        process = os.getpid()
        owner = {"process": process, "started": _started(process), "node": platform.node(), "machine": _machine()}
        return json.dumps({**owner, "time": time.time()}).encode()


def _machine() -> str | None:
    """Return an identifier of this machine and its process numbers; None if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(process: int) -> str | None:
    """Return the start time of a process of this machine, in its units; None if it has ended."""
    try:
        state, *others = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else others[18]
