"""Checks the documentation: links lead somewhere, names exist, commands parse, and Python examples run.

Usage: python tools/check_docs.py [PAGE ...]

A comment ``<!-- notest: reason -->`` on the line before a block of Python says why it is not run.
"""

import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from functools import cache
from io import StringIO
from itertools import groupby
from pathlib import Path
from pkgutil import resolve_name

from cyclopts import App, CycloptsError

from identilens.cli.app import make_app
from identilens.errors import IdentilensError
from identilens.reproduce.registry import REPRODUCTIONS

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_NAMES = re.compile(r"(?:\b(?:idl|identilens)|(?<=`)(?:measures|lab))(?:\.[A-Za-z_]\w*)+")


def broken_links(page: Path) -> Iterator[str]:
    """Yield what is wrong with the relative links of a page.

    Pages of the reference are written when the site is built, which follows links to them.
    """
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    for target in targets:
        written = target.startswith("reference/")
        if "://" not in target and not written and not (page.parent / target).exists():
            yield f"broken link {target}"


def unknown_names(page: Path) -> Iterator[str]:
    """Yield the names that a page gives for things in the package, or for reproductions, and that do not exist."""
    text = page.read_text(encoding="utf-8")
    for name in sorted(set(_NAMES.findall(text))):
        if not exists(f"identilens.{name.removeprefix('idl.').removeprefix('identilens.')}"):
            yield f"there is no {name}"
    # A name with its end left out, "wen2023-…", stands for all that begin so.
    for name in re.findall(r"identilens reproduce (\w[\w-]*)", text):
        known = [
            one
            for one in REPRODUCTIONS
            if one == name or (name.endswith("-") and one.startswith(name))
        ]
        if not known:
            yield f"there is no reproduction {name}"


@cache
def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or something in one."""
    try:
        resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


def commands(page: Path) -> Iterator[list[str]]:
    """Yield what is typed behind ``identilens`` in the console blocks and tables of a page, lists filled in."""
    typed = r"```console\n(.*?)```|\| `(identilens [^`]+)`"
    for block, cell in re.findall(typed, page.read_text(encoding="utf-8"), re.DOTALL):
        given: dict[str, str] = {}
        joined = f"{block}$ {cell}".replace("\\\n", " ")
        for line in re.findall(r"^\$ (.*)", joined, re.MULTILINE):
            given |= re.findall(r"^(\w+)=\((.*)\)", line)
            for name, value in given.items():
                line = line.replace(f'"${{{name}[@]}}"', value)
            words = shlex.shlex(
                line.replace("$(which identilens)", "; identilens"),
                posix=True,
                punctuation_chars=";",
            )
            words.whitespace_split = True
            for separator, command in groupby(words, key=lambda word: word == ";"):
                program, *options = command
                if program == "identilens" and not separator:
                    yield options


def wrong_commands(page: Path, app: App) -> Iterator[str]:
    """Yield the commands of a page that the command line does not take; none is run."""
    for words in commands(page):
        if "--config" in words:  # needs its file: tests/test_docs.py runs the pages that have it
            continue
        try:
            app.parse_args(words, exit_on_error=False, print_error=False)
        except (CycloptsError, IdentilensError) as error:
            # The folders of runs are the reader's.
            if "does not exist" not in str(error):
                yield f"identilens {shlex.join(words)}: {error}"


def failed_examples(page: Path) -> Iterator[str]:
    """Run a page's Python examples one after another in a folder of their own; yield the error, if any."""
    text = page.read_text(encoding="utf-8")
    for words in re.findall(r"^```python .*", text, re.MULTILINE):
        yield f"{words}: nothing may follow the language, and the comment says why a block is not run"
    blocks = re.findall(
        r"^(<!-- notest: \S[^\n]* -->\n)?```python\n(.*?)```", text, re.DOTALL | re.MULTILINE
    )
    code = "\n".join(block for comment, block in blocks if not comment)
    if not code:
        return
    try:
        with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(StringIO()):
            exec(compile(code, page, "exec"), {"__name__": "__main__"})
    except (Exception, SystemExit):
        yield f"an example fails\n{traceback.format_exc()}"


def main() -> bool:
    """Check every page, or those that are named, and return whether one has errors."""
    pages = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    errors = [
        f"{page.relative_to(ROOT)}: {error}"
        for page in pages
        for error in (
            *broken_links(page), *unknown_names(page), *wrong_commands(page, make_app()), *failed_examples(page),
        )
    ]  # fmt: skip
    print(*errors, f"{len(pages)} pages checked", sep="\n")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
