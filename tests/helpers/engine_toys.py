"""Toy studies whose parts fail or kill their worker, for the tests of engines."""

import os
import signal
import time
from pathlib import Path

from helpers.toy import ToyStudy
from identilens.errors import InputError
from identilens.runs.study import study_function


class FailingStudy(ToyStudy):
    """A part fails until a file says that it may succeed."""

    def run(self, part):
        if part == 1 and not (Path(self.folder).parent / "mended").exists():
            raise InputError("no luck")
        return super().run(part)


class DeadlyStudy(ToyStudy):
    """Each of two parts kills the first worker that takes it up, like kill -9."""

    def run(self, part):
        mark = Path(self.folder).parent / f"killed-{part}"
        if part in (1, 4) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(part)


class FatalStudy(ToyStudy):
    """A part kills every worker that takes it up."""

    def run(self, part):
        if part == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(part)


class SlowStudy(ToyStudy):
    """Parts take a while."""

    def run(self, part):
        time.sleep(0.3)
        return super().run(part)


class AloneStudy(ToyStudy):
    """Parts build on one another."""

    alone = "each part needs the one before"


failing, deadly, fatal, slow, alone = (
    study_function(one, "toy")
    for one in (FailingStudy, DeadlyStudy, FatalStudy, SlowStudy, AloneStudy)
)
