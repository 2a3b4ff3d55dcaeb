"""Every study killed with kill -9 at drawn points and resumed: the files of an undisturbed run, no part done twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from identilens.studies.registry import STUDIES

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def trials():
    """Asks `helpers.dying`, one process for all studies, what becomes of each point."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-m", "helpers.dying"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:

        def answered(*words):
            print(json.dumps(words), file=process.stdin, flush=True)
            found = json.loads(process.stdout.readline())
            assert "points" in found, found["error"]
            return found["points"]

        yield answered


KINDS = ("audit", "certify", "tokens", "structure", "lab encoder sweep", "lab dyck train")
"""Studies whose parts differ in kind: texts, rows, folds that use earlier ones, passes that add up, trainings, stacks.

All others are made of parts like one of these, and are killed once.
"""


@pytest.mark.parametrize("study", STUDIES)
def test_a_killed_study_is_resumed_to_the_same_files(trials, study):
    count = 4 if study in KINDS else 1
    points = trials(study, "--points", str(count))
    assert len(points) == count
    for point in points:
        assert point["killed"], point
        assert point["differs"] == [], point
        assert point["ran"] == point["missing"], point
