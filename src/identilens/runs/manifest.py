"""What a run has written: a line a file with its digest, in ``manifest.txt`` before the file takes its name."""

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
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
"""Stands in place of the digest of a folder beneath that is a run by itself."""

_LINE = re.compile(rf"([0-9a-f]{{64}}|{_RUN})  (.+)")
_CURRENT: ContextVar["Manifest | None"] = ContextVar("manifest", default=None)


class Manifest:
    """The files of a run, each with every digest that it has had; only these are the run's to read or to remove."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digests: dict[str, list[str]] | None = None

    @property
    def file(self) -> Path:
        """Where it stands."""
        return self.root / NAME

    @property
    def digests(self) -> dict[str, list[str]]:
        """The digests of each file, the last one last, by its path in the run's folder; ``run`` for a run beneath."""
        if self._digests is None:
            self._digests = {}
            for digest, name in filter(None, map(_parsed, self._lines())):
                self._digests.setdefault(name, []).append(digest)
        return self._digests

    def names(self, under: str) -> list[str]:
        """Return the paths that begin so, in order."""
        return sorted(name for name in self.digests if name.startswith(under))

    def runs(self) -> list[str]:
        """Return the folders beneath that are runs by themselves, in order."""
        return sorted(name for name, digests in self.digests.items() if _RUN in digests)

    def reread(self) -> None:
        """Look into the file again when it is next asked: another process may have written."""
        self._digests = None

    def covers(self, path: Path) -> bool:
        """Return whether a path lies in the run's folder."""
        return path.is_relative_to(self.root)

    def add(self, path: Path, digest: str = _RUN) -> None:
        """Note a file of the run by its digest, or a folder beneath that is a run by itself."""
        name = path.relative_to(self.root).as_posix()
        mirror, noted = mirror_of(self.root), digest in self.digests.get(name, ())
        if not noted:
            with self.file.open("ab+") as stream:
                # A line that was cut off in the middle stays alone.
                torn = stream.tell() and (stream.seek(-1, os.SEEK_END), stream.read(1))[1] != b"\n"
                stream.write(f"{chr(10) if torn else ''}{digest}  {name}\n".encode())
            self.digests.setdefault(name, []).append(digest)
        # A writer that died may have stored the line and not the file.
        if mirror is not None and not (noted and mirror.known.get(path) == digest):
            mirror.note(self.root, path, digest)

    def holds(self, path: Path, digest: str) -> bool:
        """Return whether the run wrote a file with this content."""
        name = path.relative_to(self.root).as_posix()
        if digest not in self.digests.get(name, ()):
            self.reread()
        return digest in self.digests.get(name, ())

    def remove(self, under: str = "", keep: Collection[str] = ()) -> None:
        """Remove the run's files whose paths begin so, and the folders that are empty then; nothing else."""
        self.reread()
        names, mirror = [name for name in self.names(under) if name not in keep], mirror_of(self.root)
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
        for place in sorted(places, key=lambda one: -len(one.parts)):
            with suppress(OSError):
                (self.root / place).rmdir()

    def tidy(self) -> None:
        """Leave out of the file what is no longer there, and all but the last digest of the rest."""
        self.reread()
        held = {name: digests[-1] for name, digests in self.digests.items() if (self.root / name).exists()}
        temporary = self.root / f".{NAME}{TEMPORARY}"
        temporary.write_text("".join(f"{digest}  {name}\n" for name, digest in held.items()), encoding="utf-8")
        temporary.replace(self.file)
        if (mirror := mirror_of(self.root)) is not None:
            mirror.remove([self.root / name for name in self.digests if name not in held])
            mirror.replace_manifest(self.file)
        self.reread()

    def remove_unfinished(self) -> None:
        """Remove what was being written when a process was killed, files and folders, but for that of runs beneath."""
        for place, folders, files in os.walk(self.root):
            for name in folders:
                if name.endswith(TEMPORARY):
                    shutil.rmtree(Path(place) / name, ignore_errors=True)
            folders[:] = [name for name in folders if not (Path(place) / name / NAME).exists()]
            for name in files:
                if name.endswith(TEMPORARY):
                    (Path(place) / name).unlink(missing_ok=True)

    def check_there(self) -> None:
        """Raise OutputFolderError if the folder was taken away while the run goes on."""
        if not self.file.is_file():
            raise OutputFolderError(
                f"{self.root} was removed or emptied while the run was writing to it. Its files are lost; "
                "run the same command again."
            )

    def _lines(self) -> list[str]:
        try:
            return self.file.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return []


def _parsed(line: str) -> tuple[str, str] | None:
    match = _LINE.fullmatch(line)
    if match is None or PurePosixPath(match[2]).is_absolute() or ".." in PurePosixPath(match[2]).parts:
        return None
    return match[1], match[2]


@contextmanager
def listed(manifest: Manifest | None) -> Iterator[None]:
    """Note in a manifest all that is written meanwhile into its run's folder; nothing for None."""
    token = _CURRENT.set(manifest)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def manifest_of(path: Path) -> Manifest | None:
    """Return the manifest in which a file that is being written is to be noted, if it lies in the run's folder."""
    manifest = _CURRENT.get()
    return manifest if manifest is not None and manifest.covers(path) else None


def digest_of(file: Path) -> str:
    """Return the sha256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
