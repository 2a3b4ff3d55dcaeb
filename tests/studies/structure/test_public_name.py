"""The function and its subpackage of one name stand side by side, whatever is imported first."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "imports",
    [
        "import identilens as idl; from identilens.measures.structure import cut, structure",
        "import identilens.measures.structure.norm; import identilens as idl; from identilens.measures.structure import cut, structure",
    ],
)
def test_either_way(imports):
    check = "assert idl.structure is structure and structure.__module__ == 'identilens.studies.structure.study'; cut"
    done = subprocess.run([sys.executable, "-c", f"{imports}; {check}"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
