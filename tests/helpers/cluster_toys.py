"""Toy studies whose parts fail or kill their process, for the tests of clusters."""

import os
import signal
from pathlib import Path

from helpers.toy import ToyStudy
from identilens.errors import InputError
from identilens.runs.files import write_text
from identilens.runs.study import study_function

MARKS = "IDENTILENS_TEST_MARKS"
"""Names a folder that tests and tasks share."""


def mark(name):
    return Path(os.environ[MARKS]) / name


class FailingStudy(ToyStudy):
    """A part fails until a file says that it may succeed; each try leaves a file."""

    def run(self, part):
        if part == 1 and not mark("mended").exists():
            mark(f"tried-{len(list(mark('').glob('tried-*')))}").touch()
            raise InputError("no luck")
        return super().run(part)


class DeadlyStudy(ToyStudy):
    """Each of two parts kills the first process that takes it up, like kill -9."""

    def run(self, part):
        if part in (1, 4) and not mark(f"killed-{part}").exists():
            mark(f"killed-{part}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(part)


class FatalStudy(ToyStudy):
    """A part kills every process that takes it up, and another one has an error of no kind of ours."""

    def run(self, part):
        if part == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if part == 3:
            raise ZeroDivisionError("of a kind")
        return super().run(part)


class WritingStudy(ToyStudy):
    """Each part writes a file into the folder of the run."""

    def run(self, part):
        write_text(Path(self.folder) / "models" / f"{part}.txt", f"part {part}")
        return super().run(part)


class AloneStudy(ToyStudy):
    """Parts build on one another."""

    alone = "each part needs the one before"


failing, deadly, fatal, writing, alone = (
    study_function(one, "toy")
    for one in (FailingStudy, DeadlyStudy, FatalStudy, WritingStudy, AloneStudy)
)
