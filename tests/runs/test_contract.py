"""What every run and every result keeps to: folders that are whole or resumable, and read back as they were."""

import json

import polars as pl
import pytest

from helpers.command import failing
from helpers.killing import same
from helpers.toy import Toy, ToyStudy, toy
from identilens.errors import OutputFolderError
from identilens.runs.tables import print_table


@pytest.fixture(autouse=True)
def _no_runs():
    ToyStudy.runs.clear()


def test_a_folder_and_memory_give_the_same(tmp_path):
    held, written = toy(layers="1-4"), toy(layers="1-4", out=tmp_path / "run")
    same(held, written)
    same(held, Toy.load(tmp_path / "run"))
    assert written.notes["word"].to_list() == ["odd", "even"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock", "manifest.txt", "matrices", "notes.parquet", "provenance.json", "run.toml", "table.parquet"
    ]  # fmt: skip


def test_a_result_says_its_finding_and_its_size():
    made = toy(layers="1-4")
    assert repr(made) == f"Toy: {made.summary().text}\ntable of 4 rows, notes of 2 rows"


def test_save_and_load_give_it_back(tmp_path):
    made = toy()
    made.save(tmp_path / "saved")
    same(made, Toy.load(tmp_path / "saved"))
    made.save(tmp_path / "saved")
    with pytest.raises(OutputFolderError, match="contains another run"):
        toy(layers=7).save(tmp_path / "saved")


def test_an_interrupted_run_goes_on_after_its_last_part(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toy(layers="1-5", fail=3, out=tmp_path / "run")
    assert ToyStudy.runs == [0, 1, 2]
    with pytest.raises(OutputFolderError, match="resume=True"):
        toy(layers="1-5", out=tmp_path / "run")
    with pytest.raises(OutputFolderError, match="was interrupted"):
        Toy.load(tmp_path / "run")
    resumed = toy(layers="1-5", out=tmp_path / "run", resume=True)
    assert ToyStudy.runs == [0, 1, 2, 3, 4]
    same(resumed, toy(layers="1-5"))
    assert not (tmp_path / "run" / "parts").exists()
    ToyStudy.runs.clear()
    same(toy(layers="1-5", out=tmp_path / "run", resume=True), resumed)
    assert ToyStudy.runs == []


def test_a_run_that_ended_before_its_first_part_is_in_nobodys_way(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toy(fail=0, out=tmp_path / "run")
    (tmp_path / "run" / "mine.txt").write_text("mine")
    found = toy(layers=4, out=tmp_path / "run")
    same(found, Toy.load(tmp_path / "run"))
    assert found.table["number"].to_list() == [4]
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"
    with pytest.raises(KeyboardInterrupt):
        toy(layers="1-3", fail=1, out=tmp_path / "later")
    with pytest.raises(OutputFolderError, match="contains another run"):
        toy(layers=4, out=tmp_path / "later")


def test_what_is_no_run_is_never_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "table.parquet").write_text("mine")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(OutputFolderError, match="identilens"):
            toy(out=tmp_path / "mine", **options)
    with pytest.raises(OutputFolderError, match="contains"):
        toy().save(tmp_path / "mine")
    assert (tmp_path / "mine" / "table.parquet").read_text() == "mine"


def test_provenance_says_what_made_it(tmp_path):
    record = toy(layers="1-2", seed=5, out=tmp_path / "run").provenance
    assert record["analysis"] == "toy"
    assert record["seed"] == 5
    assert record["settings"]["layers"] == [1, 2]
    assert "memory" not in record["settings"]
    assert record["texts"]["count"] == 2
    assert {"identilens", "torch"} <= set(record["libraries"])
    written = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert written["finished"] is True
    assert toy(layers="1-2", seed=5, memory=2048).provenance["fingerprint"] == record["fingerprint"]
    assert toy(layers="1-2", seed=6).provenance["fingerprint"] != record["fingerprint"]


HOSTILE = "\x1b]0;owned\x07[bold]\u202e\x9b2J"


def test_nothing_of_users_is_a_command_to_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    shown = r"\x1b]0;owned\x07[bold]\u202e\x9b2J"
    print_table(HOSTILE, pl.DataFrame({HOSTILE: [HOSTILE]}))
    assert capsys.readouterr().out.count(shown) == 3
    (tmp_path / "a.csv").write_text(f"{HOSTILE},b\n1,2\n", encoding="utf-8")
    given = ("--model", "bundled", "--out", tmp_path / "out")
    for words in (
        ["--file", tmp_path / "a.csv", "--column", "c"],
        ["--text", "x", "--device", HOSTILE],
    ):
        assert shown in failing("audit", *given, *words)
    assert shown in failing("export", tmp_path / HOSTILE.replace("/", ""))
    assert shown in failing("audit", "--config", tmp_path / HOSTILE, *given)


def test_progress_counts_and_tells():
    told = []
    toy(layers="3,4", progress=lambda *place: told.append(place))
    assert told == [(0, 2, ""), (0, 2, "number 3"), (1, 2, ""), (1, 2, "number 4"), (2, 2, "")]


def test_a_result_is_shown_and_reported(tmp_path, capsys):
    made = toy()
    made.show()
    assert "The squares add up to 14." in capsys.readouterr().out
    assert "add up to 14" in made._repr_html_()
    page = made.to_html(tmp_path / "deep" / "report.html").read_text()
    assert "The squares add up to 14." in page
    assert "Squares" in page
    files = made.save_figures(tmp_path / "figures", ("svg",))
    assert [file.name for file in files] == ["squares.svg"]
