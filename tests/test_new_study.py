"""A new study is one folder and one registry line: then it has a command, resumption, a report and figures."""

import shutil
import sys
from pathlib import Path

import pytest

from helpers.command import identilens
from identilens.studies import registry

TOY = Path(__file__).parent / "helpers" / "toy.py"


@pytest.fixture
def toy_package(tmp_path, monkeypatch):
    """The toy study in a package of somebody else's, with its registry line."""
    package = tmp_path / "elsewhere" / "toystudy"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(TOY, package / "study.py")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setitem(
        registry.STUDIES,
        "toy",
        registry.Entry(
            "toystudy.study:ToyStudy",
            "Square some numbers.",
            "toystudy.study:ToySettings",
            takes=(),
        ),
    )
    yield package
    sys.modules.pop("toystudy.study", None)
    sys.modules.pop("toystudy", None)


def test_a_toy_study_gets_everything(toy_package, tmp_path):
    run = str(tmp_path / "run")
    listed = identilens("--help")
    assert "Square some numbers." in listed.output
    shown = identilens("toy", "--help")
    for words in (
        "--layers",
        "Numbers to square.",
        "--share",
        "--out",
        "--resume",
        "[default: 0.5]",
    ):
        assert words in shown.output
    assert "--model" not in shown.output
    done = identilens("toy", "--layers", "1-3", "--out", run)
    assert done.code == 0
    assert "The squares add up to 14." in done.output
    assert (tmp_path / "run" / "report.html").is_file()
    again = identilens("toy", "--layers", "1-3", "--out", run)
    assert again.code == 2
    assert "--resume" in again.error
    assert identilens("toy", "--layers", "1-3", "--out", run, "--resume").code == 0
    assert identilens("export", run).code == 0
    assert identilens("export", run, "--to", "figures").code == 0
    assert (tmp_path / "run" / "figures" / "squares.svg").is_file()
