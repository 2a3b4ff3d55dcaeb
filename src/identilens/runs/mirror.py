"""Local copies of runs in object storage: each file that a run writes into its copy is uploaded once it is complete."""

import shutil
import time
import uuid
from atexit import register
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from identilens.runs.remote import Store

JOURNAL = ".manifest"
"""Folder of objects with new lines of the manifest: objects cannot be appended to."""

_MIRRORS: dict[Path, "Mirror"] = {}


class Mirror:
    """A temporary folder with a copy of what is stored under a URL; it is deleted when the process ends.

    Attributes:
        url: The URL.
        root: The folder.
        known: Digests of the stored objects, by local path.
        journals: Names of the journal's objects whose lines are in the local manifest.
        check: Raises an error if the run may no longer be written to.
    """

    def __init__(self, url: str) -> None:
        self.url, self.store = url, Store(url)
        self.root = Path(mkdtemp(prefix="identilens-")).resolve()
        self.known: dict[Path, str] = {}
        self.journals: set[str] = set()
        self.check: Callable[[], None] = lambda: None
        self._pending: list[tuple[Path, Path, str]] = []
        self._waiting = 0
        register(shutil.rmtree, self.root, ignore_errors=True)

    def name(self, path: Path) -> str:
        """Return the name of the object of a path; empty for the root."""
        return "/".join(path.relative_to(self.root).parts)

    def within(self, place: Path, name: str) -> str:
        """Return the name of an object in a folder."""
        return f"{self.name(place)}/{name}".lstrip("/")

    def note(self, root: Path, path: Path, digest: str) -> None:
        """Add a file to those that the next `settle` uploads, with its line of the manifest."""
        self._pending.append((root, path, digest))

    def settle(self) -> None:
        """Upload the noted files: first their lines of the manifest, then the files; the last file comes last."""
        if self._waiting or not self._pending:
            return
        self.check()
        pending, self._pending = self._pending, []
        for root in dict.fromkeys(root for root, _, _ in pending):
            lines = [f"{digest}  {path.relative_to(root).as_posix()}\n" for run, path, digest in pending if run == root]
            name = self.within(root, f"{JOURNAL}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}")
            self.store.write(name, "".join(lines).encode())
            self.journals.add(name)
        digests = {path: digest for _, path, digest in pending if path.is_file()}
        files = [(self.name(path), path) for path in digests]
        self.store.put(files[:-1])
        self.store.put(files[-1:])
        self.known.update(digests)

    def remove(self, paths: Collection[Path]) -> None:
        """Remove the objects of files that are stored."""
        self.store.remove([self.name(path) for path in paths if self.known.pop(path, None) is not None])

    def replace_manifest(self, file: Path) -> None:
        """Upload the manifest of a run, and remove the journal whose lines it contains."""
        self.store.write(self.name(file), file.read_bytes())
        merged = {name for name in self.journals if name.startswith(self.within(file.parent, f"{JOURNAL}/"))}
        self.store.remove(merged)
        self.journals -= merged

    def drop(self, place: Path) -> None:
        """Remove the manifest, journal and locks of a joined run."""
        self.store.remove(self.store.names(self.name(place)))

    def forget(self) -> None:
        """Discard the files that were noted but not uploaded."""
        self._pending.clear()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Upload the files that are written inside this context together at its end."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
        self.settle()


def mirror_at(url: str) -> Mirror:
    """Return the local copy of a URL; a process has one for each URL."""
    for mirror in _MIRRORS.values():
        if mirror.url == url:
            return mirror
    mirror = Mirror(url)
    return _MIRRORS.setdefault(mirror.root, mirror)


def mirror_of(path: Path) -> Mirror | None:
    """Return the local copy that contains a path, or None."""
    return next((mirror for root, mirror in _MIRRORS.items() if path.is_relative_to(root)), None)


def settle(path: Path) -> None:
    """Upload the noted files if a path is in the copy of a URL."""
    if (mirror := mirror_of(path)) is not None:
        mirror.settle()


@contextmanager
def together(path: Path) -> Iterator[None]:
    """Upload the files that are written inside this context together at its end; no effect for a local folder."""
    if (mirror := mirror_of(path)) is None:
        yield
        return
    with mirror.together():
        yield
