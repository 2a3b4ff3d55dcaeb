"""Kills one worker, like kill -9, at the so-manieth change that it makes in the folder of a run.

Python reads this as it starts, where the folder of this file is on the path: `helpers.dying` sees to that.
"""

import json
import os
import signal
from pathlib import Path

CHANGES = ("replace", "unlink", "rmdir", "mkdir", "touch", "chmod")

if "KILLED_WORKER" in os.environ:
    plan = json.loads(os.environ["KILLED_WORKER"])
    left = [plan["point"]]

    def deadly(change):
        def changed(path, *given, **options):
            if str(path).startswith(plan["folder"]):
                left[0] -= 1
                if left[0] < 0 and not os.path.exists(plan["mark"]):  # noqa: PTH110 - Path's own are counted
                    os.close(os.open(plan["mark"], os.O_CREAT))
                    os.kill(os.getpid(), signal.SIGKILL)
            return change(path, *given, **options)

        return changed

    for name in CHANGES:
        setattr(Path, name, deadly(getattr(Path, name)))
