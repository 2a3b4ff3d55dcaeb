"""Run folders that the explorer saves into and opens: those of one folder, named at the start."""

import hmac
import re
import secrets
from pathlib import Path

from identilens.errors import InputError
from identilens.explorer.work import Check, Tell, given_up, most_tokens
from identilens.models.lens import Lens
from identilens.studies.audit.study import audit
from identilens.studies.reports import write_report

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Runs:
    """The runs in a folder, by name.

    A report may come from elsewhere and run scripts, so its address holds only a key that opens this one report.
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
        found = (one.parent.name for one in self.folder.glob("*/provenance.json"))
        return sorted(name for name in found if _NAME.fullmatch(name))

    def save(self, lens: Lens, text: str, name: str, check: Check, tell: Tell) -> dict[str, str]:
        """Audit a text into a folder of this name, with all maps, and return `addresses`.

        Raises:
            InputError: For a name that is no plain word, or that is taken.
        """
        if not _NAME.fullmatch(name):
            raise InputError("expected a name of letters, digits, - and _, at most 64; got another.")
        if (self.folder / name).exists():
            raise InputError(f"there is a run {name} already; choose another name.")
        options = {"matrices": True, "certain_rows": 4, "max_length": most_tokens(lens)}
        audit(lens, [text], out=self.folder / name, progress=given_up(check, tell), **options)
        return self.addresses()

    def report(self, name: str) -> str:
        """Return the report of a run.

        Raises:
            InputError: If there is none of this name.
        """
        if name not in self.names():
            raise InputError("there is no such run.")
        path = self.folder / name / "report.html"
        if not path.exists():
            write_report(self.folder / name, path)
        return path.read_text(encoding="utf-8")
