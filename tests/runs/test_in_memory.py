"""Runs in object storage, in the memory of this process: the files of a local run, and who may write them."""

import json
import tempfile
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from helpers.killing import contents
from helpers.toy import Toy, ToyStudy, toy
from identilens.errors import InputError, OutputFolderError
from identilens.runs import bucket, lock
from identilens.runs.bucket import displayed, local_folder

URL = "memory://runs/one"
WAIT = 20
"""Seconds after which a test gives up."""


@pytest.fixture(autouse=True)
def _empty(monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setattr(bucket, "_BUCKETS", {})


def elsewhere(monkeypatch):
    """From now on another machine, which has no copy of any run and sees no process of the first."""
    monkeypatch.setattr(bucket, "_BUCKETS", {})
    monkeypatch.setattr(tempfile, "tempdir", tempfile.mkdtemp())


def objects(url=URL):
    under = url.removeprefix("memory:/") + "/"
    files = fsspec.filesystem("memory")
    return {name.removeprefix(under): files.cat_file(name) for name in files.find(under)}


def put(name, content, url=URL):
    fsspec.filesystem("memory").pipe_file(f"{url}/{name}", content)


def owner(age, **change):
    given = {"process": "process 7 on there", "file": "there 1 2", "token": "t"}
    return json.dumps({**given, "time": time.time() - age, **change}).encode()


def test_a_run_is_stored_and_read_as_in_a_folder(tmp_path, monkeypatch):
    toy(layers="1-4", out=tmp_path / "run")
    made = toy(layers="1-4", out=f"{URL}/")
    own = {
        "manifest.txt": objects()["manifest.txt"],
        "provenance.json": objects()["provenance.json"],
    }
    assert objects() == {**contents(tmp_path / "run"), **own}
    elsewhere(monkeypatch)
    for location in (URL, Path(URL)):
        read = Toy.load(location)
        assert read.table.equals(made.table)
        assert read.matrices["text1.layer0.head0.encoder.raw"].tolist() == [[2, 2], [2, 2]]
    assert displayed(local_folder(URL)) == URL
    assert displayed(local_folder(URL) / "table.parquet") == f"{URL}/table.parquet"
    with pytest.raises(OutputFolderError, match=f"{URL} already contains this run, finished"):
        toy(layers="1-4", out=URL)
    put("mine.txt", b"mine")
    toy(layers="1-3", out=URL, overwrite=True)
    assert objects()["mine.txt"] == b"mine"
    assert "matrices/text3.json" not in objects()


def test_damage_strangers_and_what_is_not_there_are_named(monkeypatch):
    toy(layers="1-2", out=URL)
    elsewhere(monkeypatch)
    put("table.parquet", b"no table")
    with pytest.raises(OutputFolderError, match=f"{URL}/table.parquet cannot be read: it is not"):
        Toy.load(URL)
    put("mine.txt", b"mine", "memory://runs/foreign")
    with pytest.raises(OutputFolderError, match="memory://runs/foreign exists and contains no run"):
        toy(layers="1-2", out="memory://runs/foreign")
    with pytest.raises(OutputFolderError, match="memory://none/here contains no toy result"):
        Toy.load("memory://none/here")
    with pytest.raises(
        InputError, match="nothing://here cannot be opened: nothing:// needs the pac"
    ):
        Toy.load("nothing://here")


@pytest.mark.parametrize(
    ("age", "refused"), [(0, 0), (lock.DEAD - 30, 270), (-1000, 0), (lock.DEAD + 1, None)]
)
def test_an_owner_that_renewed_the_lock_within_five_minutes_has_it(age, refused):
    put(".lock", owner(age))
    if refused is None:
        toy(layers="1-2", out=URL)
        assert ".lock" not in objects()
        return
    words = (
        rf"is writing to {URL} \(process 7 on there, lock renewed {refused // 10}\d? s ago\). Wait"
    )
    with pytest.raises(OutputFolderError, match=words):
        toy(layers="1-2", out=URL)
    assert set(objects()) == {".lock"}


def during(monkeypatch, action):
    """Let something happen while the second part of a run is computed."""
    run = ToyStudy.run

    def meanwhile(self, part):
        if part == 1:
            action()
        return run(self, part)

    monkeypatch.setattr(ToyStudy, "run", meanwhile)


def test_the_lock_is_renewed_while_a_part_is_computed(monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    seen = []

    def wait():
        until = time.monotonic() + WAIT
        while len(set(seen)) < 3 and time.monotonic() < until:
            seen.append(json.loads(objects()[".lock"])["time"])
            time.sleep(0.01)

    during(monkeypatch, wait)
    toy(layers="1-3", out=URL)
    assert len(set(seen)) == 3
    assert sorted(seen) == seen
    assert ".lock" not in objects()


def test_who_lost_the_lock_stops_and_leaves_the_others(monkeypatch):
    def lose():
        put(".lock", owner(0))
        monkeypatch.setattr(lock, "BEAT", -1.0)

    during(monkeypatch, lose)
    with pytest.raises(OutputFolderError, match=f"{URL} was taken over by another run"):
        toy(layers="1-3", out=URL)
    assert json.loads(objects()[".lock"])["token"] == "t"
    assert (
        "provenance.json" not in objects()
        or b'"finished": true' not in objects()["provenance.json"]
    )


def test_a_lock_that_another_makes_at_the_same_time_is_theirs(monkeypatch):
    read = lock.BucketLock._read
    monkeypatch.setattr(
        lock.BucketLock, "_read", lambda one: (read(one), put(".lock", owner(0)))[0]
    )
    with pytest.raises(OutputFolderError, match=rf"{URL} \(.* if there is none, delete .*\.lock"):
        toy(layers="1-2", out=URL)
