"""The files of a run: ``manifest.txt`` lists the name of each, before the file gets its name."""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path, PurePosixPath

from identilens.errors import OutputFolderError
from identilens.runs.bucket import bucket_of, local_folder

NAME = "manifest.txt"
LOCK = ".lock"
PROVENANCE = "provenance.json"
TEMPORARY = ".identilens-tmp"
"""End of the name of a file that is being written."""

_CURRENT: ContextVar["Manifest | None"] = ContextVar("manifest", default=None)


class Manifest:
    """The names of a run's files, relative to its folder; no other file is removed.

    A name that ends in a slash is a subfolder with a run of its own.

    Args:
        root: The folder.
        uploads: Whether the manifest of a run in object storage is uploaded when it changes. Workers leave that to
            the process that writes the run.
    """

    def __init__(self, root: Path, *, uploads: bool = True) -> None:
        self.root, self.file, self.uploads = root, root / NAME, uploads
        self._names: dict[str, None] | None = None

    @property
    def names(self) -> Collection[str]:
        """The names, in the order in which they were listed."""
        if self._names is None:
            self._names = dict.fromkeys(filter(_is_inside, self._lines()))
        return self._names.keys()

    def under(self, prefix: str) -> list[str]:
        """Return the names with a prefix, sorted."""
        return sorted(name for name in self.names if name.startswith(prefix))

    def reread(self) -> None:
        """Read the file again at the next access, because another process may have written to it."""
        self._names = None

    def add(self, *names: str) -> None:
        """List further names."""
        if all(name in self.names for name in names):
            return
        self.reread()
        new = [name for name in names if name not in self.names]
        with self.file.open("ab+") as stream:
            stream.seek(0)
            # A line that was cut off by a crash is removed.
            stream.truncate(stream.read().rfind(b"\n") + 1)
            stream.write("".join(f"{name}\n" for name in new).encode())
        self.reread()
        self._upload()

    def remove(self, prefix: str = "", keep: Collection[str] = ()) -> None:
        """Remove the run's files whose names have a prefix, and folders that are then empty; nothing else."""
        self.reread()
        names = [name for name in self.under(prefix) if name not in keep]
        self._check_removable(names)
        paths = [self.root / name for name in names if not name.endswith("/")]
        for name in names:
            if name.endswith("/"):
                Manifest(self.root / name).remove()
                paths += [self.root / name / NAME, self.root / name / LOCK]
        if (bucket := bucket_of(self.root)) is not None:
            bucket.delete(paths)
        for path in paths:
            with suppress(OSError):
                path.unlink()
        folders = {
            folder for path in paths for folder in path.parents if folder.is_relative_to(self.root)
        }
        for folder in sorted(folders - {self.root}, key=lambda folder: -len(folder.parts)):
            with suppress(OSError):
                folder.rmdir()

    def tidy(self) -> None:
        """Reduce the manifest to the files that exist; the provenance comes last, so that a cut manifest lacks it."""
        self.reread()
        present = [name for name in self.names if (self.root / name).exists()]
        present.sort(key=lambda name: name == PROVENANCE)
        temporary = self.root / f".{NAME}{TEMPORARY}"
        temporary.unlink(missing_ok=True)
        temporary.write_text("".join(f"{name}\n" for name in present), encoding="utf-8")
        temporary.replace(self.file)
        self.reread()
        self._upload()

    def remove_unfinished(self) -> None:
        """Remove temporary files and folders of a killed process; those of joined runs stay."""
        for folder, folders, files in os.walk(self.root):
            for name in folders:
                if name.endswith(TEMPORARY):
                    shutil.rmtree(Path(folder) / name, ignore_errors=True)
            folders[:] = [name for name in folders if not (Path(folder) / name / NAME).exists()]
            for name in files:
                if name.endswith(TEMPORARY):
                    (Path(folder) / name).unlink(missing_ok=True)

    def check_writable(self, path: Path) -> None:
        """Raise OutputFolderError if the folder was removed during the run, or a link in it leads elsewhere."""
        self._check_links([self.file, *self._folders(path.relative_to(self.root).as_posix())])
        if not self.file.is_file():
            raise OutputFolderError(
                f"{self.root} was removed or emptied while the run was writing to it. Its files are lost; "
                "run the same command again."
            )

    def download(self, *, contents: bool = True) -> None:
        """Update the local copy of a run in object storage; no effect for a run in a local folder.

        Only listed files are downloaded. Other objects appear as empty files, and so do all files except manifest and
        provenance without ``contents``.

        Raises:
            OutputFolderError: If the storage cannot be used.
        """
        if (bucket := bucket_of(self.root)) is None:
            return
        names = bucket.names(self.root)
        for path in self.root.iterdir() if self.root.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.root.mkdir(parents=True, exist_ok=True)
        bucket.download(self.root / name for name in (NAME, PROVENANCE) if name in names)
        self.reread()
        for name in filter(_is_inside, names):
            if not (self.root / name).exists() and name != LOCK:
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                (self.root / name).touch()
        if contents:
            bucket.download(self.root / name for name in self.names if name in names)
            for name in self.under(""):
                if name.endswith("/"):
                    Manifest(self.root / name).download()

    def _upload(self) -> None:
        if self.uploads and (bucket := bucket_of(self.root)) is not None:
            bucket.upload(self.file)

    def _check_removable(self, names: Collection[str]) -> None:
        """Raise OutputFolderError, before anything is removed, if a link would lead out of the folder."""
        self._check_links({folder for name in names for folder in self._folders(name)})
        for name in names:
            if name.endswith("/"):
                joined = Manifest(self.root / name)
                self._check_links([joined.root, joined.file])
                joined._check_removable(joined.names)

    def _check_links(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_symlink():
                raise OutputFolderError(
                    f"{path} is a symbolic link; a run writes and deletes only in its own folder. Remove the link, or "
                    "choose another folder."
                )

    def _folders(self, name: str) -> list[Path]:
        """Return the folders between the run's folder and one of its files."""
        return [self.root / folder for folder in PurePosixPath(name).parents[:-1]]

    def _lines(self) -> list[str]:
        try:
            content = (
                self.file.read_text(encoding="utf-8", errors="replace")
                if self.file.is_file()
                else ""
            )
        except OSError:
            return []
        return content.split("\n")[:-1]


def _is_inside(name: str) -> bool:
    """Return whether a name stands for something inside the run's folder."""
    path = PurePosixPath(name)
    return (
        not path.is_absolute() and ".." not in path.parts and path.parts != () and "\0" not in name
    )


@contextmanager
def recording(manifest: Manifest | None) -> Iterator[None]:
    """List every file that is written into the run's folder inside this context; None: list no files."""
    token = _CURRENT.set(manifest)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def manifest_of(path: Path) -> Manifest | None:
    """Return the current manifest if its folder contains a path."""
    manifest = _CURRENT.get()
    return manifest if manifest is not None and path.is_relative_to(manifest.root) else None


def downloaded(location: str | Path) -> Path:
    """Return the local folder of a run to read; the files of a URL are downloaded first."""
    folder = local_folder(location)
    Manifest(folder).download()
    return folder
