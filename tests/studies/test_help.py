"""What help() and the reference say of studies, and what they answer to calls that were meant otherwise."""

from pathlib import Path

import pytest

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import InputError
from identilens.models import Lens
from identilens.runs.settings import hints_of
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.registry import STUDIES, study_named


def function_of(name):
    """The public function of a study."""
    study = study_named(name)
    public = (getattr(place, name) for place in (idl, idl.lab) for name in place.__all__)
    return next(
        thing
        for thing in public
        if hasattr(thing, "__signature__") and thing.__module__ == study.__module__
    )


@pytest.mark.parametrize("name", STUDIES)
def test_help_describes_every_setting_and_option(name):
    documented = function_of(name).__doc__
    arguments = documented.partition("Args:")[2].partition("Raises:")[0]
    for argument in (
        *hints_of(study_named(name).settings_type),
        "settings",
        "out",
        "resume",
        "ray",
        "progress",
    ):
        assert f"\n    {argument}: " in arguments, argument
    assert "Other arguments" not in documented


def test_settings_by_position_are_refused():
    lens = Lens(build("bert"))
    with pytest.raises(TypeError, match="too many positional arguments"):
        idl.certify(lens, [ids(4)], 3, 9, "cat")
    with pytest.raises(TypeError, match="argument: 'texts'"):
        idl.audit(lens)
    with pytest.raises(TypeError, match="argument: 'lens'"):
        idl.structure()


def test_the_name_of_a_file_is_no_text(tmp_path, monkeypatch, bundled):
    monkeypatch.chdir(tmp_path)
    Path("n20.txt").write_text("Snow fell.", encoding="utf-8")
    for texts in ("n20.txt", ["Snow fell.", "n20.txt"], str(tmp_path / "n20.txt")):
        with pytest.raises(InputError, match="read_texts"):
            idl.audit(bundled, texts, layers=0, examples=0)
    settings = AuditSettings(layers=(0,), examples=0)
    for texts in (" n20.txt", "other.txt", "Snow.", "x" * 300 + ".txt"):
        assert len(idl.audit(bundled, texts, settings=settings).table) == 12
