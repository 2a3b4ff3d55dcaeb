"""Local copies of runs that lie in object storage: what a run writes into its copy is put there as it becomes whole."""

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
"""Folder of objects with lines of the manifest that are not in its file yet: objects cannot be appended to."""

_MIRRORS: dict[Path, "Mirror"] = {}


class Mirror:
    """A temporary folder and the URL whose copy it is; it lives as long as the process.

    Attributes:
        url: Where the objects are.
        root: The folder.
        known: Digest of what is stored, by local path.
        journals: Objects of the journal whose lines the local manifest has.
        check: Raises once the run may no longer be written to.
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
        """Return the name of the object of a path; nothing for the root."""
        return "/".join(path.relative_to(self.root).parts)

    def within(self, place: Path, name: str) -> str:
        """Return the name of an object beneath a folder."""
        return f"{self.name(place)}/{name}".lstrip("/")

    def note(self, root: Path, path: Path, digest: str) -> None:
        """Remember a line that was added to the manifest of a run here."""
        self._pending.append((root, path, digest))

    def settle(self) -> None:
        """Store what was noted: first the lines, then the files, the last one last."""
        if self._waiting or not self._pending:
            return
        self.check()
        noted, self._pending = self._pending, []
        for root in dict.fromkeys(root for root, _, _ in noted):
            lines = [f"{digest}  {path.relative_to(root).as_posix()}\n" for one, path, digest in noted if one == root]
            name = self.within(root, f"{JOURNAL}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}")
            self.store.write(name, "".join(lines).encode())
            self.journals.add(name)
        digests = {path: digest for _, path, digest in noted if path.is_file()}
        files = [(self.name(path), path) for path in digests]
        self.store.put(files[:-1])
        self.store.put(files[-1:])
        self.known.update(digests)

    def remove(self, paths: Collection[Path]) -> None:
        """Remove the objects of files, as far as they are known to be there."""
        self.store.remove([self.name(path) for path in paths if self.known.pop(path, None) is not None])

    def replace_manifest(self, file: Path) -> None:
        """Store the manifest of a run as it is here, in place of the journal that has led to it."""
        self.store.write(self.name(file), file.read_bytes())
        done = {name for name in self.journals if name.startswith(self.within(file.parent, f"{JOURNAL}/"))}
        self.store.remove(done)
        self.journals -= done

    def drop(self, place: Path) -> None:
        """Remove what is left of a run beneath: its manifest, journal and locks."""
        self.store.remove(self.store.names(self.name(place)))

    def forget(self) -> None:
        """Leave what was noted and not stored."""
        self._pending.clear()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store what is written meanwhile at the end, all at once, the last file last."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
        self.settle()


def mirror_at(url: str) -> Mirror:
    """Return the local copy of what a URL holds; there is one for each URL in a process."""
    for mirror in _MIRRORS.values():
        if mirror.url == url:
            return mirror
    mirror = Mirror(url)
    return _MIRRORS.setdefault(mirror.root, mirror)


def mirror_of(path: Path) -> Mirror | None:
    """Return the local copy that a path lies in, if any."""
    return next((mirror for root, mirror in _MIRRORS.items() if path.is_relative_to(root)), None)


def settle(path: Path) -> None:
    """Store what was noted of a path's run, where it is kept in object storage."""
    if (mirror := mirror_of(path)) is not None:
        mirror.settle()


@contextmanager
def together(path: Path) -> Iterator[None]:
    """Store what is written meanwhile into a run at the end, all at once; nothing for a run in a local folder."""
    if (mirror := mirror_of(path)) is None:
        yield
        return
    with mirror.together():
        yield
