"""One writer to a folder: a lock that a dead process does not hold."""

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
    """Return the lock on a run, held until it is closed or the process ends; also where the run is stored, if it is.

    Raises:
        OutputFolderError: If another process holds it, or the folder cannot be written.
    """
    file, held = folder / LOCK, ExitStack()
    lock = FileLock(file)
    with translated_write_errors(file):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise OutputFolderError(
                f"another run is writing to {folder} ({_holder(file)}). Wait until it ends, or choose another folder."
            ) from None
        # Who holds it is a courtesy: a full disk must not leave the lock held.
        with suppress(OSError):
            file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    with held:
        held.callback(lock.release)
        if (mirror := mirror_of(folder)) is not None:
            held.callback(StoredLock(mirror, folder).release)
        return held.pop_all()


def _holder(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace") or "a process that has just begun"
    except OSError:
        return "an unknown process"
