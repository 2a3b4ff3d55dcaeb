"""Damaged and hostile files in a run's folder: named, or harmless, whatever they contain."""

import json
import shutil
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import identilens as idl
from helpers.killing import contents, interrupted, same
from helpers.toy import Toy, ToyStudy, toy
from identilens.errors import InputError, OutputFolderError


def test_a_damaged_part_runs_again(tmp_path):
    interrupted(tmp_path / "run", part=3)
    part = tmp_path / "run" / "parts" / "000001.safetensors"
    part.write_bytes(part.read_bytes()[:-20])
    ToyStudy.runs.clear()
    same(toy(layers="1-4", out=tmp_path / "run", resume=True), toy(layers="1-4"))
    assert ToyStudy.runs[:2] == [1, 3]


def test_a_run_without_its_provenance_is_left_alone(tmp_path):
    toy(out=tmp_path / "run")
    (tmp_path / "run" / "provenance.json").unlink()
    left = contents(tmp_path / "run")
    for options in ({"resume": True}, {}):
        with pytest.raises(OutputFolderError, match="provenance"):
            toy(out=tmp_path / "run", **options)
    assert contents(tmp_path / "run") == left
    same(toy(out=tmp_path / "run", overwrite=True), toy())
    (tmp_path / "run" / "manifest.txt").unlink()
    with pytest.raises(OutputFolderError, match="manifest"):
        toy(out=tmp_path / "run", overwrite=True)


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"format": 1, "analysis": "toy"}'])
def test_a_record_of_another_form_is_named(tmp_path, content):
    toy(out=tmp_path / "run")
    (tmp_path / "run" / "provenance.json").write_text(content)
    with pytest.raises(OutputFolderError, match="provenance"):
        Toy.load(tmp_path / "run")


@pytest.mark.parametrize(("change", "words"), [({}, "format None"), ({"format": 7}, "format 7")])
@pytest.mark.parametrize("state", ["finished", "interrupted"])
def test_a_run_of_another_format_is_neither_read_nor_continued(tmp_path, change, words, state):
    run = tmp_path / "run"
    if state == "finished":
        toy(layers="1-4", out=run)
    else:
        interrupted(run)
    file = run / "provenance.json"
    record = json.loads(file.read_text())
    assert record.pop("format") == 1
    file.write_text(json.dumps({**record, **change}))
    message = rf"\({words}\); this one reads format 1. Run again: overwrite=True deletes it"
    for use in (
        lambda: Toy.load(run),
        lambda: idl.load_result(run),
        lambda: toy(layers="1-4", out=run, resume=True),
        lambda: toy(layers="1-4", out=run),
    ):
        with pytest.raises(InputError, match=message):
            use()
    assert toy(layers=7, out=run, overwrite=True).table["square"].to_list() == [49.0]


def damaged(content, kind, draw):
    """The content of a file after an accident."""
    if kind == "cut":
        return content[: draw(st.integers(0, max(0, len(content) - 1)))]
    return {"other": b"PAR1 and nothing else", "longer": content + b"{}"}.get(kind, b"")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished and an interrupted run."""
    place = tmp_path_factory.mktemp("runs")
    toy(layers="1-4", out=place / "finished")
    interrupted(place / "interrupted", part=3)
    return place


@pytest.mark.usefixtures("unchecked_shapes")
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_damage_is_told_or_does_no_harm(runs, data):
    state = data.draw(st.sampled_from(["finished", "interrupted"]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        shutil.copytree(runs / state, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        file = data.draw(st.sampled_from(files))
        kind = data.draw(st.sampled_from(["cut", "empty", "other", "longer", "gone"]))
        if kind == "gone":
            file.unlink()
        else:
            file.write_bytes(damaged(file.read_bytes(), kind, data.draw))
        message = ""
        try:
            result = (
                Toy.load(folder)
                if state == "finished"
                else toy(layers="1-4", out=folder, resume=True)
            )
            same(result, Toy.load(runs / "finished"))
        except OutputFolderError as error:
            message = str(error)
        assert not message or str(folder) in message


@pytest.mark.parametrize("column", [pl.col("number") + 0.5, pl.col("number").cast(pl.String)])
def test_a_table_of_other_types_is_damaged(tmp_path, column):
    toy(layers="1-3", out=tmp_path / "run")
    file = tmp_path / "run" / "table.parquet"
    pl.read_parquet(file).with_columns(column.alias("number")).write_parquet(file)
    with pytest.raises(OutputFolderError, match="parquet"):
        Toy.load(tmp_path / "run")


def test_a_table_that_the_manifest_does_not_list_is_empty(tmp_path):
    toy(out=tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.txt"
    listed = manifest.read_text().splitlines()
    manifest.write_text("".join(f"{name}\n" for name in listed if name != "notes.parquet"))
    (tmp_path / "run" / "notes.parquet").unlink()
    again = Toy.load(tmp_path / "run")
    assert again.notes.is_empty()
    assert again.table["number"].to_list() == [1, 2, 3]
