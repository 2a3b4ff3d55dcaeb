"""``identilens certify``, ``alternatives`` and ``logit-ranks`` as a person uses them."""

import json

import pytest

from helpers.command import identilens
from identilens.runs.result import Finding
from identilens.studies.certify.result import Certainty

SMALL = ("--text", "The ferry left before dawn.", "--layers", 0, "--heads", 0, "--queries", "last")


@pytest.mark.parametrize("option", ["--json", "--quiet", None])
def test_what_is_printed(bundled_path, tmp_path, option, monkeypatch):
    numbers = {"none": None, "infinite": float("inf"), "share": 0.5, "count": 3}
    monkeypatch.setattr(Certainty, "summary", lambda _: Finding("One line.\nAnother.", numbers))
    given = ("certify", "--model", bundled_path, *SMALL, "--out", tmp_path / "run")
    done = identilens(*given, *([option] if option else []), code=0)
    if option == "--json":
        assert json.loads(done.output)["numbers"] == {**numbers, "infinite": None}
        assert json.loads(done.output)["finding"] == "One line.\nAnother."
    elif option == "--quiet":
        assert (done.output, done.error) == ("", "")
    else:
        assert done.output.startswith("One line. Another.")
        assert "report: " in done.output
