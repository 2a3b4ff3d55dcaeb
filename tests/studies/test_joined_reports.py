"""Runs that were made on an audit's folder stand in the audit's report."""

import polars as pl
import pytest
import torch

import identilens as idl
from helpers import zoo
from identilens.runs.folder import joined_runs, read_record
from identilens.studies.reports import joined_results


def batch(first, last):
    return {"input_ids": torch.arange(first, last)[None]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An audit of two texts; the joined runs saw the second one, and one that it does not hold."""
    path, lens = tmp_path_factory.mktemp("joined") / "run", idl.Lens(zoo.build("gpt2"))
    idl.audit(lens, [list(range(30, 40)), list(range(5, 29))], out=path)
    idl.certify(lens, batch(5, 29), layers=1, heads=[0, 1], queries=[20], tolerance=0, out=path)
    idl.certify(lens, batch(40, 52), layers=0, heads=0, queries=[5, 11], tolerance=0, out=path)
    idl.alternatives(lens, batch(5, 29), layers=1, heads=0, starts=1, out=path)
    idl.alternatives(lens, batch(5, 29), layers=1, heads=[0, 1], starts=1, seed=3, out=path)
    return path


@pytest.fixture(scope="module")
def joined(folder):
    return {one.analysis: one for one in joined_results(folder, read_record(folder))}


def test_texts_of_the_audit_keep_their_numbers(joined):
    assert set(joined["certify"].table["text"]) == {1, 2}
    assert set(joined["certify"].rows["text"]) == {1, 2}
    assert set(joined["alternatives"].table["text"]) == {1}
    assert {key.split(".")[0] for key in joined["alternatives"].matrices} == {"text1"}


def test_several_runs_of_a_study_come_as_one_and_the_last_counts(joined, folder):
    runs = [
        one
        for path in joined_runs(folder)
        if (one := idl.load_result(path)).analysis == "alternatives"
    ]
    assert len(runs) == 2
    table = joined["alternatives"].table
    assert table.select("head", "alternative").is_duplicated().sum() == 0
    assert len(table) == 6
    last = runs[-1].table.with_columns(text=pl.lit(1, pl.Int64))
    for row in last.iter_rows(named=True):
        assert (
            table.filter(head=row["head"], alternative=row["alternative"]).row(0, named=True) == row
        )
    assert len(joined["certify"].rows) == 4


def test_the_audits_report_shows_them(folder, joined, tmp_path):
    page = idl.write_report(folder, tmp_path / "report.html").read_text(encoding="utf-8")
    for result in joined.values():
        assert f"{result.title}: {result.sections()[0].title}" in page
    assert 'id="certify-intervals"' in page
    assert 'id="alternatives-alternatives"' in page
