"""What the tests of the command line share."""

import pytest

from identilens.cli.app import main


@pytest.fixture
def here(capsys):
    """Runs the program in this process, which is much faster, and returns what it wrote."""

    def start(*arguments, code=0):
        ended = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            ended = stopped.code
        written = capsys.readouterr()
        assert ended == code, written.out + written.err
        return written

    return start


@pytest.fixture
def failing_here(here):
    """Runs the program in this process and returns the message it fails with."""

    def start(*arguments):
        message = " ".join(here(*arguments, code=2).err.split())
        assert message.startswith("error: ")
        assert "Traceback" not in message
        return message

    return start
