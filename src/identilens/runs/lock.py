"""The lock on a run's folder: one writer at a time; the lock of a dead process is free."""

import os
import platform
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from identilens.errors import OutputFolderError
from identilens.runs.files import translated_write_errors
from identilens.runs.manifest import LOCK
from identilens.runs.mirror import mirror_of
from identilens.runs.stored_lock import StoredLock


def hold(folder: Path) -> ExitStack:
    """Lock a run's folder, and its place in object storage if it has one; closing the stack releases the locks.

    Raises:
        OutputFolderError: If another process holds it, or the folder cannot be written.
    """
    file, locks = folder / LOCK, ExitStack()
    lock = FileLock(file)
    if file.is_symlink():
        raise OutputFolderError(f"{file} is a symbolic link. Remove it, or choose another folder.")
    with translated_write_errors(file):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise OutputFolderError(
                f"another run is writing to {folder} ({_holder(file)}). Wait until it ends, or choose another folder."
            ) from None
        # The owner's name is only information: on a full disk the run goes on without it.
        with suppress(OSError):
            file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    with locks:
        locks.callback(lock.release)
        if (mirror := mirror_of(folder)) is not None:
            locks.callback(StoredLock(mirror, folder).release)
        return locks.pop_all()


def _holder(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace") or "a process that has just begun"
    except OSError:
        return "an unknown process"
