"""Studies killed with kill -9 and resumed: the files of an undisturbed run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import identilens as idl
from helpers.killing import contents
from helpers.runs import CASES
from identilens.errors import OutputFolderError


@pytest.mark.parametrize(("study", "point"), [("certify", 18), ("structure", 40)])
def test_a_killed_study_is_resumed_to_the_same_files(tmp_path, study, point):
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    killed = subprocess.run(
        [sys.executable, "-m", "helpers.dying", study, str(tmp_path / "run"), str(point)],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(OutputFolderError):
        idl.load_result(tmp_path / "run")
    CASES[study](None, out=tmp_path / "run", resume=True)
    CASES[study](None, out=tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
