"""The lock on a run's folder: one writer at a time; the lock of a dead process is free."""

import os
import platform
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from identilens.errors import OutputFolderError
from identilens.runs.files import LOCK, translated_write_errors


def acquire_lock(folder: Path) -> AbstractContextManager[Any]:
    """Lock a run's folder, until the returned context is left.

    Raises:
        OutputFolderError: If another process holds it, or the folder cannot be written.
    """
    file = folder / LOCK
    if file.is_symlink():
        raise OutputFolderError(f"{file} is a symbolic link. Remove it, or choose another folder.")
    with translated_write_errors(file):
        try:
            held = FileLock(file).acquire(blocking=False)
        except Timeout:
            words = file.read_text(encoding="utf-8", errors="replace")
            owner = words or "a process that has just begun"
            raise OutputFolderError(
                f"another run is writing to {folder} ({owner}). Wait until it ends, or choose another folder."
            ) from None
        # The owner's name is only information: on a full disk the run goes on without it.
        with suppress(OSError):
            file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    return held
