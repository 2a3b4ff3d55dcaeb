"""The public names, and that those which a subpackage shares do not hide one another."""

import subprocess
import sys

import pytest

import identilens as idl
from identilens.mixing.analysis import mixing
from identilens.results import Mixing


def test_mixing_is_the_function():
    assert idl.mixing is mixing
    assert idl.Mixing is Mixing


@pytest.mark.parametrize(
    "imports",
    [
        "import identilens as idl; from identilens.mixing import track_token, mixing",
        "from identilens.mixing import track_token, mixing; import identilens as idl",
        "import identilens.mixing.own; import identilens as idl; from identilens.mixing import track_token, mixing",
        "from identilens import mixing; import identilens as idl; import identilens.mixing.neighbours; "
        "from identilens.mixing.tracking import track_token",
    ],
)
def test_the_function_and_its_subpackage_stand_side_by_side(imports):
    check = (
        "assert idl.mixing is mixing and mixing.__module__ == 'identilens.mixing.analysis', idl.mixing; "
        "assert callable(track_token); from identilens.mixing import analysis; assert analysis.mixing is mixing"
    )
    subprocess.run([sys.executable, "-c", f"{imports}; {check}"], check=True, timeout=120)
