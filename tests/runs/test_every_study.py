"""The contract of every study: interrupted, resumed, loaded, reported, and damaged."""

import json
from html.parser import HTMLParser

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.runs import CASES, prepare
from identilens.errors import OutputFolderError
from identilens.studies.registry import STUDIES, study_named

VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


class Sections(HTMLParser):
    """The elements of a page are closed in order; the text of each section is kept."""

    def __init__(self):
        super().__init__()
        self.open, self.sections = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID and "svg" not in self.open:
            self.open.append(tag)
        if tag == "section":
            self.sections.append("")

    def handle_endtag(self, tag):
        if tag not in VOID and ("svg" not in self.open or tag == "svg"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "section" in self.open and self.open[-1] not in ("script", "h2"):
            self.sections[-1] += data.strip()


def equal(first, second):
    """Both results have the same tables, matrices and tokens; how long training took is no part of it."""
    for name in first.schema:
        frames = [getattr(one, name) for one in (first, second)]
        assert_frame_equal(*(frame.drop("seconds", strict=False) for frame in frames))
    assert list(first.matrices) == list(second.matrices)
    assert all(first.matrices[key].equal(second.matrices[key]) for key in first.matrices)
    assert {text: dict(names) for text, names in first.tokens.items()} == {
        text: dict(names) for text, names in second.tokens.items()
    }


class Watched:
    """The parts that a study runs are noted; the last one is interrupted while ``stops``."""

    def __init__(self, study, monkeypatch):
        run, sizes = study.run, study.sizes
        self.ran, self.count, self.stops = [], 0, True

        def counted(inner):
            found = sizes(inner)
            self.count = len(found)
            return found

        def watched(inner, part):
            if part == self.count - 1 and self.stops:
                raise KeyboardInterrupt
            self.ran.append(part)
            return run(inner, part)

        monkeypatch.setattr(study, "sizes", counted)
        monkeypatch.setattr(study, "run", watched)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_keeps_the_contract(name, tmp_path, monkeypatch):
    prepare(name, tmp_path)
    case, folder = CASES[name], tmp_path / "run"
    watched = Watched(study_named(name), monkeypatch)

    with pytest.raises(KeyboardInterrupt):
        case(tmp_path, out=folder)
    assert watched.ran == list(range(watched.count - 1))
    with pytest.raises(OutputFolderError):
        idl.load_result(folder)
    watched.stops = False
    watched.ran.clear()
    resumed = case(tmp_path, out=folder, resume=True)
    assert watched.ran == [watched.count - 1]
    equal(resumed, case(tmp_path, out=tmp_path / "whole"))

    loaded = idl.load_result(folder)
    assert type(loaded) is type(resumed)
    equal(loaded, resumed)
    finding = loaded.summary()
    assert finding.text
    assert json.loads(json.dumps(finding.numbers, allow_nan=False, default=float))

    page = Sections()
    page.feed(loaded.to_html(tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert page.sections
    assert all(page.sections), page.sections

    table = pl.read_parquet(folder / "table.parquet")
    table.drop(table.columns[0]).write_parquet(folder / "table.parquet")
    with pytest.raises(OutputFolderError, match=r"table\.parquet"):
        idl.load_result(folder)
