"""Every study killed with kill -9 at drawn points and resumed: the files of an undisturbed run, no part done twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from identilens.studies.registry import STUDIES

TESTS = Path(__file__).parents[1]


def trials(*words):
    """What `helpers.dying` says of each point."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "helpers.dying", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False, timeout=550
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["points"]


@pytest.mark.parametrize("study", STUDIES)
def test_a_killed_study_is_resumed_to_the_same_files(study):
    points = trials(study, "--points", "4")
    assert len(points) == 4
    for point in points:
        assert point["killed"], point
        assert point["differs"] == [], point
        assert point["ran"] == point["missing"], point


@pytest.mark.parametrize("dies", ["driver", "worker"])
def test_a_killed_driver_is_resumed_and_a_killed_worker_replaced(dies):
    for point in trials("audit", "--engine", "local", "--dies", dies, "--points", "3"):
        assert point["differs"] == [], point
        assert set(point["ran"]) <= set(point["missing"]), point


@pytest.mark.parametrize("dies", ["driver", "worker", "head"])
def test_whoever_dies_of_a_cluster(dies):
    pytest.importorskip("ray")
    for point in trials("audit", "--engine", "ray", "--dies", dies, "--points", "1"):
        assert point["differs"] == [], point
        assert set(point["ran"]) <= set(point["missing"]), point
