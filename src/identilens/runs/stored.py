"""Runs by path or URL; for a URL, files are read and written in a local copy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from identilens.errors import IdentilensError, InputError
from identilens.runs.manifest import LOCK, NAME, PROVENANCE, Manifest, digest_of
from identilens.runs.mirror import JOURNAL, Mirror, mirror_at, mirror_of
from identilens.runs.remote import url_in

_PARTS = "parts/"


def local_place(place: str | Path) -> Path:
    """Return the folder where a run is read and written: the place itself, or the local copy of a URL."""
    if not isinstance(place, str | Path) or not _is_name(str(place)):
        raise InputError(f"expected a folder or a URL, as text or a Path without null characters; got {place!r}.")
    url = url_in(place)
    if url is None and str(place).endswith("://"):
        raise InputError(f"expected a folder or a URL such as s3://bucket/run; got {place!r}, which names no place.")
    return Path(place) if url is None else mirror_at(url).root


def _is_name(text: str) -> bool:
    """Return whether the file system can have a file of this name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def shown_place(path: str | Path) -> str:
    """Return a path for messages: its URL if it is in the local copy of a URL."""
    mirror = mirror_of(Path(path))
    return str(path) if mirror is None else f"{mirror.url}/{mirror.name(Path(path))}".rstrip("/")


def present(place: str | Path) -> Path:
    """Return the local folder of a run to read; the files of a URL are downloaded first."""
    path = local_place(place)
    if url_in(place) is not None:
        fetch(path)
    return path


@contextmanager
def told_by_url(place: str | Path) -> Iterator[None]:
    """Let errors name the URL instead of its local copy."""
    try:
        yield
    except IdentilensError as error:
        if (url := url_in(place)) is not None:
            error.args = (str(error).replace(str(mirror_at(url).root), url), *error.args[1:])
        raise


def fetch(place: Path, *, parts: bool = True) -> None:
    """Update the local copy of a run, and of the runs joined to it; no effect for a run in a local folder.

    Only files that the manifest lists are downloaded, without parts if ``parts`` is False. Objects of others appear as
    empty files.

    Raises:
        OutputFolderError: If the storage cannot be used.
    """
    mirror = mirror_of(place)
    if mirror is None:
        return
    mirror.forget()
    names = set(mirror.store.names(mirror.name(place)))
    before = set(Manifest(place).digests)
    manifest = _fetched_manifest(mirror, place, names)
    for name in before - set(manifest.digests):
        with suppress(OSError):
            (place / name).unlink()
    chosen = [name for name in {**manifest.digests, PROVENANCE: []} if parts or not name.startswith(_PARTS)]
    files = [place / name for name in chosen if mirror.within(place, name) in names]
    missing = [file for file in files if not _is_current(mirror, manifest, file)]
    mirror.store.get([(mirror.name(file), file) for file in missing])
    mirror.known.update({file: digest_of(file) for file in missing if file.is_file()})
    if PROVENANCE not in manifest.digests:
        _show_foreign_objects(
            place, manifest, [name.removeprefix(f"{mirror.name(place)}/").lstrip("/") for name in names]
        )
    for name in manifest.runs():
        (place / name).mkdir(parents=True, exist_ok=True)
        fetch(place / name, parts=parts)


def _fetched_manifest(mirror: Mirror, place: Path, names: set[str]) -> Manifest:
    file, folder = mirror.within(place, NAME), mirror.within(place, f"{JOURNAL}/")
    journals = sorted(name for name in names if name.startswith(folder))
    contents = mirror.store.read([file, *journals] if file in names else journals)
    place.mkdir(parents=True, exist_ok=True)
    if contents:
        (place / NAME).write_bytes(b"".join(contents[name] for name in (file, *journals) if name in contents))
    else:
        (place / NAME).unlink(missing_ok=True)
    mirror.journals.update(journals)
    return Manifest(place)


def _is_current(mirror: Mirror, manifest: Manifest, file: Path) -> bool:
    digests = manifest.digests.get(file.relative_to(manifest.root).as_posix(), ())
    return [mirror.known.get(file)] == list(digests) and file.is_file()


def _show_foreign_objects(place: Path, manifest: Manifest, names: list[str]) -> None:
    known = {NAME, LOCK, JOURNAL, PROVENANCE, *(name.split("/")[0] for name in manifest.digests)}
    for name in {name.split("/")[0] for name in names} - known:
        (place / name).touch()
