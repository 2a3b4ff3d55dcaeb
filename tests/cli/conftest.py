"""What the tests of the command line share."""

import sys

import pytest

from identilens.cli.app import main


@pytest.fixture
def here(monkeypatch, capsys):
    """Runs the program in this process, which is much faster, and returns what it wrote."""

    def start(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["identilens", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        written = capsys.readouterr()
        assert stopped.value.code == code, written.err
        return written

    return start


@pytest.fixture
def failing_here(here):
    """Runs the program in this process and returns the message it fails with."""
    return lambda *arguments: " ".join(here(*arguments, code=2).err.split())
