"""Words for the terminal, in which nothing that users or files bring is a command or markup. Imports nothing heavy."""

from rich.console import Console
from rich.text import Text


def printable(text: str, kept: str = "") -> str:
    """Return text with its control and direction characters written out, except for those that are ``kept``."""
    return "".join(
        mark
        if mark.isprintable() or mark in kept
        else mark.encode("unicode_escape").decode("ascii")
        for mark in text
    )


def plain(words: object) -> Text:
    """Return words as the terminal may show them."""
    return Text(printable(str(words), "\n"))


def say(words: object, *, error: bool = False) -> None:
    """Print words in lines of any length; errors begin with ``error:`` and go to the standard error."""
    before = [Text("error:", "bold red")] if error else []
    Console(stderr=error).print(*before, plain(words), soft_wrap=True)
