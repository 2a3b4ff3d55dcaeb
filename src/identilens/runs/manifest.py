"""The files of a run: ``manifest.txt`` has a line with the digest of each, written before the file gets its name."""

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path, PurePosixPath

from identilens.errors import OutputFolderError
from identilens.runs.mirror import mirror_of

NAME = "manifest.txt"
LOCK = ".lock"
PROVENANCE = "provenance.json"
TEMPORARY = ".identilens-tmp"
"""End of the name of a file that is being written."""

_RUN = "run"
"""In place of the digest, for a subfolder that is a run of its own."""

_LINE = re.compile(rf"([0-9a-f]{{64}}|{_RUN})  (.+)")
_CURRENT: ContextVar["Manifest | None"] = ContextVar("manifest", default=None)


class Manifest:
    """The files of a run, with all digests that each has had; no other file is read or removed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digests: dict[str, list[str]] | None = None

    @property
    def file(self) -> Path:
        """Path of the manifest."""
        return self.root / NAME

    @property
    def digests(self) -> dict[str, list[str]]:
        """The digests of each file, oldest first, by its path in the run's folder; ``run`` for a joined run."""
        if self._digests is None:
            self._digests = {}
            for digest, name in filter(None, map(_parsed, self._lines())):
                self._digests.setdefault(name, []).append(digest)
        return self._digests

    def names(self, under: str) -> list[str]:
        """Return the paths with this prefix, sorted."""
        return sorted(name for name in self.digests if name.startswith(under))

    def runs(self) -> list[str]:
        """Return the subfolders that are runs of their own, sorted."""
        return sorted(name for name, digests in self.digests.items() if _RUN in digests)

    def reread(self) -> None:
        """Read the file again at the next access, because another process may have written to it."""
        self._digests = None

    def covers(self, path: Path) -> bool:
        """Return whether a path lies in the run's folder."""
        return path.is_relative_to(self.root)

    def add(self, path: Path, digest: str = _RUN) -> None:
        """Add a file of the run with its digest, or a subfolder that is a run of its own."""
        name = path.relative_to(self.root).as_posix()
        mirror, listed_before = mirror_of(self.root), digest in self.digests.get(name, ())
        if not listed_before:
            with self.file.open("ab+") as stream:
                # A line that was cut off by a crash stays on a line of its own.
                torn = stream.tell() and (stream.seek(-1, os.SEEK_END), stream.read(1))[1] != b"\n"
                stream.write(f"{chr(10) if torn else ''}{digest}  {name}\n".encode())
            self.digests.setdefault(name, []).append(digest)
        # A writer that died may have stored the line but not the file.
        if mirror is not None and not (listed_before and mirror.known.get(path) == digest):
            mirror.note(self.root, path, digest)

    def holds(self, path: Path, digest: str) -> bool:
        """Return whether the run has written this content to the file."""
        name = path.relative_to(self.root).as_posix()
        if digest not in self.digests.get(name, ()):
            self.reread()
        return digest in self.digests.get(name, ())

    def remove(self, under: str = "", keep: Collection[str] = ()) -> None:
        """Remove the run's files whose paths have this prefix, and folders that are then empty; nothing else."""
        self.reread()
        names, mirror = [name for name in self.names(under) if name not in keep], mirror_of(self.root)
        self._check_removable(names)
        if mirror is not None:
            mirror.remove([self.root / name for name in names])
        for name in names:
            if _RUN in self.digests[name]:
                Manifest(self.root / name).remove()
                (self.root / name / NAME).unlink(missing_ok=True)
                (self.root / name / LOCK).unlink(missing_ok=True)
                if mirror is not None:
                    mirror.drop(self.root / name)
            with suppress(OSError):
                (self.root / name).unlink()
        places = {place for name in names for place in [PurePosixPath(name), *PurePosixPath(name).parents][:-1]}
        for place in sorted(places, key=lambda place: -len(place.parts)):
            with suppress(OSError):
                (self.root / place).rmdir()

    def tidy(self) -> None:
        """Reduce the manifest to the files that exist, each with its last digest."""
        self.reread()
        present = {name: digests[-1] for name, digests in self.digests.items() if (self.root / name).exists()}
        temporary = self.root / f".{NAME}{TEMPORARY}"
        temporary.unlink(missing_ok=True)
        temporary.write_text("".join(f"{digest}  {name}\n" for name, digest in present.items()), encoding="utf-8")
        temporary.replace(self.file)
        if (mirror := mirror_of(self.root)) is not None:
            mirror.remove([self.root / name for name in self.digests if name not in present])
            mirror.replace_manifest(self.file)
        self.reread()

    def remove_unfinished(self) -> None:
        """Remove temporary files and folders of a killed process; those of joined runs stay."""
        for place, folders, files in os.walk(self.root):
            for name in folders:
                if name.endswith(TEMPORARY):
                    shutil.rmtree(Path(place) / name, ignore_errors=True)
            folders[:] = [name for name in folders if not (Path(place) / name / NAME).exists()]
            for name in files:
                if name.endswith(TEMPORARY):
                    (Path(place) / name).unlink(missing_ok=True)

    def check_writable(self, path: Path) -> None:
        """Raise OutputFolderError if the folder was removed during the run, or a link in it leads elsewhere."""
        self._check_links([self.file, *_folders(path.relative_to(self.root).as_posix(), self.root)])
        if not self.file.is_file():
            raise OutputFolderError(
                f"{self.root} was removed or emptied while the run was writing to it. Its files are lost; "
                "run the same command again."
            )

    def _check_removable(self, names: Collection[str]) -> None:
        """Raise OutputFolderError, before anything is removed, if a link would lead out of the folder."""
        self._check_links({folder for name in names for folder in _folders(name, self.root)})
        runs = [self.root / name for name in names if _RUN in self.digests[name]]
        self._check_links([*runs, *(run / NAME for run in runs)])
        for run in runs:
            joined = Manifest(run)
            joined._check_removable(joined.digests)

    def _check_links(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_symlink():
                raise OutputFolderError(
                    f"{path} is a symbolic link; a run writes and deletes only in its own folder. Remove the link, or "
                    "choose another folder."
                )

    def _lines(self) -> list[str]:
        try:
            return self.file.read_text(encoding="utf-8", errors="replace").split("\n") if self.file.is_file() else []
        except OSError:
            return []


def _folders(name: str, root: Path) -> list[Path]:
    """Return the folders between a run's folder and one of its files."""
    return [root / folder for folder in PurePosixPath(name).parents[:-1]]


def _parsed(line: str) -> tuple[str, str] | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    path = PurePosixPath(match[2])
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in match[2]:
        return None
    return match[1], match[2]


@contextmanager
def listed(manifest: Manifest | None) -> Iterator[None]:
    """Add every file that is written into the run's folder inside this context to a manifest; None for no manifest."""
    token = _CURRENT.set(manifest)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def manifest_of(path: Path) -> Manifest | None:
    """Return the current manifest if it covers a path."""
    manifest = _CURRENT.get()
    return manifest if manifest is not None and manifest.covers(path) else None


def digest_of(file: Path) -> str:
    """Return the sha256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
