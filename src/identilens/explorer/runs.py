"""Run folders that the explorer saves into and opens: those of one folder, named at the start."""

import hmac
import os
import re
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory

from identilens.errors import InputError
from identilens.explorer.work import Check, Tell, given_up, most_tokens
from identilens.models.lens import Lens
from identilens.studies.audit.study import audit
from identilens.studies.reports import write_report

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Runs:
    """The runs in a folder, by name.

    A report has scripts and texts of others, so its address holds only a key that opens this one report.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._secret = secrets.token_bytes(32)

    def addresses(self) -> dict[str, str]:
        """Return the address of the report of each run, by name."""
        return {name: f"run/{name}?key={self._key(name)}" for name in self.names()}

    def opens(self, name: str, key: str) -> bool:
        """Return whether a key is that of a run."""
        return hmac.compare_digest(key.encode(), self._key(name).encode())

    def _key(self, name: str) -> str:
        return hmac.digest(self._secret, name.encode(), "sha256").hex()

    def names(self) -> list[str]:
        """Return the names of the runs that are there."""
        found = (one.parent for one in self.folder.glob("*/provenance.json"))
        return sorted(
            one.name for one in found if _NAME.fullmatch(one.name) and not one.is_symlink()
        )

    def save(self, lens: Lens, text: str, name: str, check: Check, tell: Tell) -> dict[str, str]:
        """Audit a text into a folder of this name, with all maps, and return `addresses`.

        Raises:
            InputError: For a name that is no plain word, or that is taken.
        """
        if not _NAME.fullmatch(name):
            raise InputError(
                "expected a name of letters, digits, - and _, at most 64; got another."
            )
        if os.path.lexists(self.folder / name):
            raise InputError(f"there is a run {name} already; choose another name.")
        options = {"matrices": True, "certain_rows": 4, "max_length": most_tokens(lens)}
        audit(lens, [text], out=self.folder / name, progress=given_up(check, tell), **options)
        return self.addresses()

    def report(self, name: str) -> str:
        """Return the report of a run, made from its tables: one in its folder may come from elsewhere and do anything.

        Raises:
            InputError: If there is none of this name.
            OutputFolderError: If the run is not finished, or its files are damaged.
        """
        if name not in self.names():
            raise InputError("there is no such run.")
        with TemporaryDirectory() as place:
            return write_report(self.folder / name, Path(place) / "report.html").read_text(
                encoding="utf-8"
            )
