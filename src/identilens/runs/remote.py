"""Object storage for runs: reads and writes of whole objects through fsspec, and errors with remedies."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from identilens.errors import IdentilensError, InputError, OutputFolderError

_AT_ONCE = 16
"""Number of objects that are read or written at the same time."""

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
    "with --resume."
)


def url_in(place: str | Path) -> str | None:
    """Return the URL of a place, without a slash at its end; None for a local folder."""
    text = _FLATTENED.sub(r"\1://", str(place), count=1) if isinstance(place, Path) else str(place)
    return text.rstrip("/") if _URL.fullmatch(text) else None


class Store:
    """The objects under a URL, by their names relative to it. An object is written completely or not at all.

    Raises:
        InputError: If the package that serves the URL is not installed.
        OutputFolderError: From any method, if the storage cannot be used.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with self._translated_errors():
            from fsspec.core import url_to_fs

            self._files, self._base = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)

    def names(self, under: str = "") -> list[str]:
        """Return the names of the objects in a folder, sorted; all by default."""
        folder = f"{self._base}/{under}".rstrip("/")
        with self._translated_errors():
            self._files.invalidate_cache()
            paths = self._files.find(folder)
            if not paths:  # a missing bucket may look the same
                self._files.ls(self._base.split("/")[0])
        return sorted(name.removeprefix(self._base).lstrip("/") for name in paths)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of objects by name; objects that do not exist are left out."""
        contents: dict[str, bytes] = {}

        def one(name: str) -> None:
            with suppress(FileNotFoundError):
                contents[name] = self._files.cat_file(self._at(name))

        self._each(one, names)
        return contents

    def get(self, files: Collection[tuple[str, Path]]) -> None:
        """Download objects into local files; the file of an object that does not exist is removed."""

        def one(pair: tuple[str, Path]) -> None:
            name, file = pair
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._files.get_file(self._at(name), str(file))
            except FileNotFoundError:
                file.unlink(missing_ok=True)

        self._each(one, files)

    def put(self, files: Collection[tuple[str, Path]]) -> None:
        """Upload local files as objects."""
        self._each(lambda pair: self._files.put_file(str(pair[1]), self._at(pair[0])), files)

    def write(self, name: str, content: bytes) -> None:
        """Write an object; a previous one is replaced."""
        with self._translated_errors():
            self._files.pipe_file(self._at(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object if none exists, and return whether it was written: of several processes one succeeds."""
        with self._translated_errors():
            try:
                self._files.pipe_file(self._at(name), content, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if "PreconditionFailed" in repr(error) or "At least one of the pre-conditions" in str(error):
                    return False
                raise
            return True

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; it is no error if one does not exist."""

        def one(name: str) -> None:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

        self._each(one, names)

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _each(self, work: object, entries: Iterable[object]) -> None:
        todo: Sequence[object] = list(entries)
        with self._translated_errors(), ThreadPoolExecutor(max(1, min(_AT_ONCE, len(todo)))) as threads:
            list(threads.map(work, todo))  # pyright: ignore[reportArgumentType]

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except IdentilensError:
            raise
        except (ImportError, ValueError) as error:
            scheme = self.url.split(":")[0]
            extra = "pip install 'identilens[s3]'" if scheme == "s3" else "the package of fsspec for it"
            raise InputError(f"{self.url} cannot be opened: {scheme}:// needs {extra} ({error}).") from error
        except Exception as error:  # each kind of storage has its own errors
            remedy = _REMEDIES.get(type(error).__name__, _OTHERWISE)
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise OutputFolderError(f"{self.url} cannot be used: {why.rstrip('.')}. {remedy}") from error
