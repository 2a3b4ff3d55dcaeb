"""A run's folder can be trusted: whole or resumable, never mixed with anything else, whatever happens to it."""

import json
import os
import resource
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import identilens as idl
from helpers.killing import contents, interrupted, killed_at, same
from helpers.toy import Toy, toy
from identilens.errors import InputError, OutputFolderError
from identilens.runs import provenance
from identilens.runs.folder import acquire_lock


def test_a_run_killed_anywhere_goes_on_to_the_same_files(tmp_path, monkeypatch):
    toy(layers="1-3", out=tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    for point in range(0, 10_000, 2):
        folder = tmp_path / f"run{point}"
        finished = []
        with killed_at(point, monkeypatch):
            toy(layers="1-3", out=folder)
            finished.append(True)
        toy(layers="1-3", out=folder, resume=True)
        assert contents(folder) == expected, point
        assert json.loads((folder / "provenance.json").read_text())["finished"]
        if finished:
            break
    assert point > 40


def test_overwrite_killed_anywhere_can_be_asked_for_again(tmp_path, monkeypatch):
    toy(layers="4-5", out=tmp_path / "whole")
    expected = {**contents(tmp_path / "whole"), "mine.txt": b"mine"}
    for point in range(0, 200, 9):
        folder = tmp_path / f"run{point}"
        toy(layers="1-3", out=folder)
        (folder / "mine.txt").write_text("mine")
        finished = []
        with killed_at(point, monkeypatch):
            toy(layers="4-5", out=folder, overwrite=True)
            finished.append(True)
        toy(layers="4-5", out=folder, overwrite=True)
        assert contents(folder) == expected, point
        if finished:
            break
    assert finished


def test_overwrite_removes_only_what_the_manifest_lists(tmp_path):
    folder = tmp_path / "run"
    toy(out=folder)
    mine = [
        "mine.parquet", "model/mine.bin", "matrices/mine.safetensors", "parts/mine", "checkpoints/mine",
        "runs/x/y",
    ]  # fmt: skip
    for name in mine:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("mine")
    assert toy(layers=7, out=folder, overwrite=True).table["number"].to_list() == [7]
    assert {(folder / name).read_text() for name in mine} == {"mine"}
    assert not (folder / "matrices" / "text1.safetensors").exists()
    assert toy(layers=7, out=folder, resume=True).table["number"].to_list() == [7]


@pytest.mark.parametrize("name", ["matrices", "parts", "joined"])
def test_nothing_is_removed_through_a_link(tmp_path, name):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    interrupted(folder)
    toy(layers=9, out=folder / "joined")
    with (folder / "manifest.txt").open("a") as file:
        file.write("joined/\nmatrices/text7.json\n")
    if (folder / name).exists():
        (folder / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
        (elsewhere / "text7.json").write_text("{}")
    (folder / name).symlink_to(elsewhere)
    before = contents(elsewhere)
    assert toy(layers="5", out=folder, overwrite=True).table["number"].to_list() == [5]
    # The run writes its own parts through the link.
    assert name == "parts" or before.items() <= contents(elsewhere).items()


def test_a_run_may_lie_behind_a_link_and_a_file_be_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    toy(out=tmp_path / "run")
    (tmp_path / "disk" / "table.parquet").rename(tmp_path / "moved.parquet")
    (tmp_path / "disk" / "table.parquet").symlink_to(tmp_path / "moved.parquet")
    toy(layers=5, out=tmp_path / "run", overwrite=True)
    assert (tmp_path / "moved.parquet").is_file()
    assert Toy.load(tmp_path / "disk").table["number"].to_list() == [5]


def test_a_file_is_listed_before_it_gets_its_name(tmp_path, monkeypatch):
    """A process that dies between the two leaves a line too many, and never a file that is not of the run."""
    rename, listed_before = Path.replace, []

    def watched(self, target):
        if Path(target).name != "manifest.txt":
            listed = (tmp_path / "run" / "manifest.txt").read_text().splitlines()
            name = Path(target).relative_to(tmp_path / "run").as_posix()
            listed_before.append((Path(target).name, name in listed))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    toy(layers="1-2", out=tmp_path / "run")
    assert {name for name, _ in listed_before} >= {
        "table.parquet", "provenance.json", "run.toml", "000000.safetensors",
    }  # fmt: skip
    assert [name for name, first in listed_before if not first] == []


def test_a_manifest_that_lists_other_places_does_no_harm(tmp_path):
    toy(out=tmp_path / "run")
    (tmp_path / "mine.txt").write_text("mine")
    lines = ["./", "././", ".", "/", "../", "../mine.txt", str(tmp_path / "mine.txt")]
    with (tmp_path / "run" / "manifest.txt").open("a") as file:
        file.write("\n".join(lines) + "\n")
    toy(layers=5, out=tmp_path / "run", overwrite=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert Toy.load(tmp_path / "run").table["number"].to_list() == [5]


@pytest.mark.parametrize("name", ["run?", "[r]un1", "a b"])
def test_no_path_is_a_pattern(tmp_path, name):
    for other in ("run1", "run2"):
        toy(layers="8-9", out=tmp_path / other)
    assert toy(layers="1-2", out=tmp_path / name).table["number"].to_list() == [1, 2]
    assert Toy.load(tmp_path / name).table["number"].to_list() == [1, 2]
    assert toy(layers="3", out=tmp_path / name, overwrite=True).table["number"].to_list() == [3]
    assert Toy.load(tmp_path / "run1").table["number"].to_list() == [8, 9]


def test_a_second_writer_is_refused_at_once_and_a_dead_one_holds_nothing(tmp_path):
    interrupted(tmp_path / "run")
    with acquire_lock(tmp_path / "run"):
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(OutputFolderError, match="another run is writing to .*run. Wait"):
                toy(layers="1-4", out=tmp_path / "run", **options)
    assert len(toy(layers="1-4", out=tmp_path / "run", resume=True).table) == 4


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    interrupted(tmp_path / "run")
    left = [
        tmp_path / "run" / ".table.parquet.0a1b2c3d.identilens-tmp",
        tmp_path / "run/parts/.x.1.identilens-tmp",
    ]
    toy(out=tmp_path / "run" / "joined")
    mine = [tmp_path / "run" / ".mine.tmp", tmp_path / "run" / "joined" / ".a.1.identilens-tmp"]
    for file in (*left, *mine):
        file.write_text("half")
    toy(layers="1-4", out=tmp_path / "run", resume=True)
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in mine)


def test_a_folder_that_vanishes_is_told(tmp_path):
    def vanish(done, total, note):
        if done == 2:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(OutputFolderError, match="parts/000000.safetensors cannot be read"):
        toy(layers="1-4", out=tmp_path / "run", progress=vanish)
    assert len(toy(layers="1-4", out=tmp_path / "run", overwrite=True).table) == 4


@contextmanager
def room_for(size):
    """No file may become larger than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size", [0, 60, 300, 500, 700, 900, 1100, 1300])
def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path, size):
    with room_for(size), pytest.raises(OutputFolderError) as failed:
        toy(layers="1-3", out=tmp_path / "run")
    assert "could not write" in str(failed.value)
    assert "File too large" in str(failed.value)
    assert "resume=True" in str(failed.value)
    same(toy(layers="1-3", out=tmp_path / "run", resume=True), toy(layers="1-3"))


def test_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        toy(out=tmp_path / "run")
    finally:
        os.umask(before)
    files = [
        path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"
    ]
    assert {(path.name, path.stat().st_mode & 0o777) for path in files} == {
        (path.name, 0o640) for path in files
    }
    assert {path.suffix for path in files} >= {".safetensors", ".parquet", ".json", ".txt"}


def test_a_run_of_other_versions_does_not_go_on(tmp_path, monkeypatch):
    interrupted(tmp_path / "run")
    monkeypatch.setattr(provenance, "version", lambda name: "99")
    with pytest.raises(OutputFolderError, match=r'torch is ".*" there and "99" here'):
        toy(layers="1-4", out=tmp_path / "run", resume=True)
    monkeypatch.undo()
    found = toy(layers="1-4", out=tmp_path / "run", resume=True)
    monkeypatch.setattr(provenance, "version", lambda name: "99")
    same(toy(layers="1-4", out=tmp_path / "run", resume=True), found)


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
