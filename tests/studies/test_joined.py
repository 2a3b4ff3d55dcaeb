"""Runs beneath the folder of an audit, joined to its report: texts are numbered as in the audit, later runs count."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from helpers.written import RECORD, alternatives, certainty, faithfulness
from identilens.studies import reports


def placed(result, *digests):
    return replace(
        result, provenance={**RECORD, "texts": {"count": len(digests), "sha256": list(digests)}}
    )


@pytest.fixture
def join(monkeypatch):
    def joined(*results, unfinished=()):
        paths = [Path(str(number)) for number in range(len(results))]
        monkeypatch.setattr(reports, "joined_runs", lambda folder: paths)
        records = {path: {"finished": int(path.name) not in unfinished} for path in paths}
        monkeypatch.setattr(reports, "read_record", records.get)
        monkeypatch.setattr(reports, "load_result", lambda path: results[int(path.name)])
        record = {"texts": {"count": 3, "sha256": ["t0", "t1", "t0"]}}
        return reports.joined_results(Path(), record)

    return joined


def test_texts_keep_the_numbers_of_the_audit_and_others_come_after(join):
    (found,) = join(placed(alternatives(), "new", "t1"))
    assert found.table["text"].unique(maintain_order=True).to_list() == [3, 1]
    assert set(found.tokens) == {3, 1}
    names = {name.split(".")[0] for name in found.matrices}
    assert names == {"text3", "text1"}
    assert len(found.matrices) == len(alternatives().matrices)
    (first,) = join(placed(certainty(), "t0"))
    assert first.table["text"].unique().to_list() == [0]


def test_runs_of_a_study_come_as_one_and_the_last_counts(join):
    first, other = placed(certainty(), "t1"), placed(certainty(((0, 0),)), "t1")
    later = replace(other, table=other.table.with_columns(value=pl.lit(0.125)))
    found, second = join(first, placed(faithfulness(1), "t0"), later)
    assert (type(found), type(second)) == (type(first), type(faithfulness()))
    assert len(found.table) == len(first.table)
    again = found.table.filter(head=0, query=0)
    assert set(again["value"]) == {0.125}
    assert 0.125 not in found.table.filter(head=1)["value"].to_list()
    assert found.rows["text"].unique().to_list() == [1]
    assert len(join(first, later, unfinished=(0,))[0].table) == len(later.table)


def test_two_new_texts_have_two_numbers(join):
    found, second = join(placed(certainty(), "a"), placed(faithfulness(), "b", "a"))
    assert found.table["text"].unique().to_list() == [3]
    assert second.table["text"].unique(maintain_order=True).to_list() == [4, 3]


def test_sections_name_their_result():
    result = faithfulness()
    shown = reports._apart(result)
    assert [one.anchor for one in shown][:2] == ["faithfulness-faithful", "faithfulness-plane"]
    assert {one.of for one in shown} == {"Are explanations faithful, and stable?"}
    assert not any(isinstance(chart, str) for one in shown for chart in one.charts)
    assert reports._opening(alternatives()) == "Alternatives to attention weights:"
