"""A study killed with kill -9 and resumed: `python -m helpers.dying NAME FOLDER POINT` runs it until it dies.

A point is the so-manieth change that the process makes in the file system.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from helpers.killing import CHANGES
from helpers.runs import CASES


def dying(point):
    """From now on the process kills itself before the so-manieth change of the file system."""
    left = [point]

    def counted(change):
        def changed(*given, **options):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*given, **options)

        return changed

    for name in CHANGES:
        setattr(Path, name, counted(getattr(Path, name)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dying(int(sys.argv[3]))
    CASES[sys.argv[1]](None, out=Path(sys.argv[2]))
