"""Runs in object storage: a run works in a local copy, and each file is uploaded once it is complete."""

import os
import re
import shutil
from atexit import register
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from identilens.errors import IdentilensError, InputError, OutputFolderError

_TRANSFERS = 16
"""Number of objects that are downloaded or deleted at the same time."""

_URL = re.compile(r"([a-z][a-z0-9+.-]+)://.+", re.DOTALL)
_FLATTENED = re.compile(r"(s3|gs|gcs|az|abfs|memory):/(?=[^/])")
"""A URL that was converted to a path."""

_REMEDIES = {
    "NoCredentialsError": "Give credentials as the tools of AWS take them: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role of the machine.",
    "FileNotFoundError": "Create the bucket first, or check its name.",
    "PermissionError": "Use credentials that may list, read, write and delete there.",
}
_OTHERWISE = (
    "Check the address, the endpoint (AWS_ENDPOINT_URL) and the network. Finished parts are safe: run the same command "
    "with resume=True."
)


class Bucket:
    """The objects under a URL, and a local folder with their copy, which is deleted when the process ends.

    Attributes:
        url: The URL, without a slash at its end.
        folder: The local folder.
        checks: Called before each upload, by the folder of a run; they raise an error if its lock was lost.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.checks: dict[Path, Callable[[], None]] = {}
        with self.translated_errors():
            from fsspec.core import url_to_fs
            from fsspec.implementations.dirfs import DirFileSystem

            files, self._base = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
            self.files: Any = DirFileSystem(self._base, files)
        self.folder = Path(mkdtemp(prefix="identilens-")).resolve()
        register(shutil.rmtree, self.folder, ignore_errors=True)

    def name(self, path: Path) -> str:
        """Return the name of the object of a local path, relative to the URL."""
        return "/".join(path.relative_to(self.folder).parts)

    def names(self, folder: Path) -> list[str]:
        """Return the names of the objects in a folder, relative to it."""
        under = self.name(folder)
        with self.translated_errors():
            self.files.invalidate_cache()
            names = self.files.find(under)
            if not names:  # a bucket that does not exist may look the same
                self.files.fs.ls(self._base.split("/")[0])
        return sorted(name.removeprefix(under).lstrip("/") for name in names)

    def download(self, paths: Iterable[Path]) -> None:
        """Download objects to their local paths."""
        self._each(lambda path: self.files.get_file(self.name(path), str(path)), paths)

    def upload(self, path: Path) -> None:
        """Upload a local file, if the run still has its lock."""
        for check in self.checks.values():
            check()
        with self.translated_errors():
            self.files.put_file(str(path), self.name(path))

    def delete(self, paths: Iterable[Path]) -> None:
        """Delete the objects of local paths; it is no error if one does not exist."""
        self._each(lambda path: self.files.rm_file(self.name(path)), paths)

    def _each(self, transfer: Callable[[Path], None], paths: Iterable[Path]) -> None:
        def guarded(path: Path) -> None:
            with suppress(FileNotFoundError):
                transfer(path)

        with self.translated_errors(), ThreadPoolExecutor(_TRANSFERS) as threads:
            list(threads.map(guarded, paths))

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn errors of the storage into an error that names the URL and the remedy."""
        try:
            yield
        except IdentilensError:
            raise
        except (ImportError, ValueError) as error:
            scheme = self.url.split(":")[0]
            extra = (
                "pip install 'identilens[s3]'" if scheme == "s3" else "the package of fsspec for it"
            )
            raise InputError(
                f"{self.url} cannot be opened: {scheme}:// needs {extra} ({error})."
            ) from error
        except Exception as error:  # each kind of storage has its own errors
            remedy = _REMEDIES.get(type(error).__name__, _OTHERWISE)
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise OutputFolderError(
                f"{self.url} cannot be used: {why.rstrip('.')}. {remedy}"
            ) from error


_BUCKETS: dict[Path, Bucket] = {}
"""The buckets that this process uses, by their local folders."""


def bucket_of(path: Path) -> Bucket | None:
    """Return the bucket whose local copy contains a path, or None."""
    return next(
        (bucket for folder, bucket in _BUCKETS.items() if path.is_relative_to(folder)), None
    )


def url_in(location: str | Path) -> str | None:
    """Return the URL of a location, without a slash at its end; None for a local folder."""
    text = str(location)
    if isinstance(location, Path):
        text = _FLATTENED.sub(r"\1://", text, count=1)
    return text.rstrip("/") if _URL.fullmatch(text) else None


def local_folder(location: str | Path) -> Path:
    """Return the folder where a run is read and written: the location itself, or the local copy of a URL.

    Raises:
        InputError: If the location cannot be a folder or a URL.
    """
    try:
        valid = isinstance(location, str | Path) and b"\0" not in os.fsencode(location)
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise InputError(
            f"expected a folder or a URL, as text or a Path without null characters; got {location!r}."
        )
    if str(location).endswith("://"):
        raise InputError(
            f"expected a folder or a URL such as s3://bucket/run; got {location!r}, which names no place."
        )
    url = url_in(location)
    if url is None:
        return Path(location)
    for folder, bucket in _BUCKETS.items():
        if bucket.url == url:
            return folder
    bucket = Bucket(url)
    _BUCKETS[bucket.folder] = bucket
    return bucket.folder


def displayed(path: Path) -> str:
    """Return a path for messages: its URL if it is in the local copy of a bucket."""
    bucket = bucket_of(path)
    return str(path) if bucket is None else f"{bucket.url}/{bucket.name(path)}".rstrip("/")


@contextmanager
def errors_naming_url(location: str | Path) -> Iterator[None]:
    """Let errors name the URL in place of its local copy."""
    try:
        yield
    except IdentilensError as error:
        if (url := url_in(location)) is not None:
            error.args = (str(error).replace(str(local_folder(location)), url), *error.args[1:])
        raise
