"""The lock on a run's folder: one writer at a time; the lock of a dead process is free.

A local folder contains a lock file of the operating system. In object storage the lock is one object, created only if
it does not exist. Its owner renews it; another process may take it over after five minutes without a renewal, or at
once if it is on the same machine and holds the lock file that the owner held. Clocks of machines must agree within a
few minutes.
"""

import hashlib
import json
import os
import platform
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from filelock import FileLock, Timeout

from identilens.errors import OutputFolderError
from identilens.runs.bucket import Bucket, bucket_of
from identilens.runs.files import LOCK, translated_write_errors

BEAT = 30.0
"""Seconds between renewals."""

DEAD = 300.0
"""Seconds without a renewal after which an owner counts as dead."""


def acquire_lock(folder: Path) -> ExitStack:
    """Lock a run's folder; closing the stack releases the lock.

    Raises:
        OutputFolderError: If another process holds it, or the folder cannot be written.
    """
    bucket, file = bucket_of(folder), folder / LOCK
    if bucket is not None:
        digest = hashlib.sha256(f"{bucket.url} {bucket.name(folder)}".encode()).hexdigest()
        file = Path(tempfile.gettempdir()) / f"identilens-{os.getuid()}-{digest[:16]}.lock"
    if file.is_symlink():
        raise OutputFolderError(f"{file} is a symbolic link. Remove it, or choose another folder.")
    lock, process = FileLock(file), f"process {os.getpid()} on {platform.node()}"
    with ExitStack() as locks:
        with translated_write_errors(file):
            try:
                lock.acquire(blocking=False)
            except Timeout:
                owner = file.read_text(encoding="utf-8", errors="replace")
                raise _refusal(folder, owner or "a process that has just begun") from None
            locks.callback(lock.release)
            # The owner's name is only information: on a full disk the run goes on without it.
            with suppress(OSError):
                file.write_text(process, encoding="utf-8")
        if bucket is not None:
            locks.callback(BucketLock(bucket, folder, process, file).release)
        return locks.pop_all()


class BucketLock:
    """A lock in object storage, from its construction until it is released.

    Raises:
        OutputFolderError: If another process has the lock, or the storage cannot be used.
    """

    def __init__(self, bucket: Bucket, folder: Path, process: str, file: Path) -> None:
        self._bucket, self._folder, self._name = bucket, folder, bucket.name(folder / LOCK)
        status = file.stat()
        # Only one living process that sees this file can hold its lock.
        number = f"{platform.node()} {status.st_dev} {status.st_ino}"
        self._owner = {"process": process, "file": number, "token": os.urandom(8).hex()}
        if owner := self._read():
            age = max(0, time.time() - owner["time"])
            if owner["file"] != number and age < DEAD:
                raise _refusal(folder, f"{owner['process']}, lock renewed {age:.0f} s ago")
            bucket.delete([folder / LOCK])
        try:
            self._write(mode="create")
        except OutputFolderError as error:
            why = repr(error.__cause__)
            known = ("FileExistsError", "PreconditionFailed", "At least one of the pre-conditions")
            if any(words in why for words in known):
                raise _refusal(
                    folder, f"a process that has just begun; if there is none, delete {self._name}"
                ) from error
            raise
        self._renewed, self._end = time.monotonic(), Event()
        self._thread = Thread(target=self._renew_until_end, daemon=True, name="identilens-lock")
        self._thread.start()
        bucket.checks[folder] = self.check

    def check(self) -> None:
        """Raise OutputFolderError if the lock was lost because it could not be renewed in time."""
        if time.monotonic() - self._renewed > 2 * BEAT:
            self._renew()

    def release(self) -> None:
        """Release the lock, unless it was lost."""
        self._end.set()
        self._thread.join()
        del self._bucket.checks[self._folder]
        if self._is_ours():
            self._bucket.delete([self._folder / LOCK])

    def _renew_until_end(self) -> None:
        while not self._end.wait(BEAT):
            # An error is raised at the next upload, if the network is still down.
            with suppress(OutputFolderError):
                self._renew()

    def _renew(self) -> None:
        if not self._is_ours():
            raise OutputFolderError(
                f"{self._folder} was taken over by another run, or removed, while this run could not renew its lock. "
                "Check it before you run the same command again."
            )
        self._write()
        self._renewed = time.monotonic()

    def _is_ours(self) -> bool:
        return (self._read() or {}).get("token") == self._owner["token"]

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the lock; None if there is none, or it is no lock."""
        with self._bucket.translated_errors():
            try:
                owner = json.loads(self._bucket.files.cat_file(self._name))
                if {"process", "file", "token"} <= owner.keys() and owner["time"] >= 0:
                    return owner
            except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
                return None
        return None

    def _write(self, **options: str) -> None:
        content = json.dumps({**self._owner, "time": time.time()}).encode()
        with self._bucket.translated_errors():
            self._bucket.files.pipe_file(self._name, content, **options)


def _refusal(folder: Path, owner: str) -> OutputFolderError:
    return OutputFolderError(
        f"another run is writing to {folder} ({owner}). Wait until it ends, or choose another folder."
    )
