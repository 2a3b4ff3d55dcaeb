"""The command line run as a person runs it: in a process of its own."""

import subprocess
import sys


def command(*arguments):
    """What starts the program with these arguments."""
    return [sys.executable, "-c", "from identilens.cli.app import main; main()", *map(str, arguments)]


def run(*arguments, cwd=None):
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


def failing(*arguments):
    result = run(*arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())
