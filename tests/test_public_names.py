"""The public names, and that those which a subpackage shares do not hide one another."""

import subprocess
import sys

import pytest

import identilens as idl
from identilens.results import Mixing
from identilens.studies.mixing.study import mixing


def test_mixing_is_the_function():
    assert idl.mixing is mixing
    assert idl.Mixing is Mixing


@pytest.mark.parametrize(
    "imports",
    [
        "import identilens as idl; from identilens.measures.mixing import track_token, mixing",
        "from identilens.measures.mixing import track_token, mixing; import identilens as idl",
        "import identilens.measures.mixing.own; import identilens as idl; from identilens.measures.mixing import track_token, mixing",
        "from identilens import mixing; import identilens as idl; import identilens.measures.mixing.neighbours; "
        "from identilens.measures.mixing.tracking import track_token",
    ],
)
def test_the_function_and_its_subpackage_stand_side_by_side(imports):
    check = (
        "assert idl.mixing is mixing and mixing.__module__ == 'identilens.studies.mixing.study', idl.mixing; "
        "assert callable(track_token); from identilens.measures.mixing import analysis; assert analysis.mixing is mixing"
    )
    subprocess.run([sys.executable, "-c", f"{imports}; {check}"], check=True, timeout=120)
