"""Runs on a Ray cluster give what one process gives, whoever dies meanwhile."""

import os
import pickle
import sys
from pathlib import Path

import pytest

import identilens as idl
from helpers import cluster_toys, zoo
from helpers.killing import contents
from helpers.toy import ToySettings, ToyStudy, toy
from identilens.errors import CheckFailedError, InputError, SettingError
from identilens.runs.cluster import Job, load_study
from identilens.runs.provenance import provenance

TESTS = Path(__file__).parents[1]
NUMBERS = "1-7"


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
    """A small cluster, whose tasks import the toys and see the marks."""
    ray = pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("marks")
    with pytest.MonkeyPatch.context() as patched:
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        patched.setenv("PYTHONPATH", path)
        patched.setenv(cluster_toys.MARKS, str(folder))
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield folder
        ray.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    toy(layers=NUMBERS, out=folder)
    return contents(folder)


def test_tasks_give_what_one_process_gives_and_those_that_die_are_tried_again(
    marks, tmp_path, whole
):
    told = []
    cluster_toys.deadly(
        layers=NUMBERS, out=tmp_path / "run", ray=True, progress=lambda *place: told.append(place)
    )
    assert contents(tmp_path / "run") == whole
    assert told[0] == (0, 7, "the cluster starts")
    assert [place[0] for place in told] == [*range(8)]
    assert {"killed-1", "killed-4"} <= {path.name for path in marks.iterdir()}


def test_parts_that_fail_twice_are_named_and_all_others_are_saved(marks, tmp_path, whole):
    with pytest.raises(CheckFailedError) as failed:
        cluster_toys.fatal(layers=NUMBERS, out=tmp_path / "run", ray=True)
    words = str(failed.value)
    assert words.startswith("2 of 7 parts failed, each of them twice. part 2 (numbers 2): ")
    assert "part 3 (numbers 3): ZeroDivisionError: of a kind" in words
    assert "resume=True" in words
    assert len(list((tmp_path / "run" / "parts").iterdir())) == 5
    toy(layers=NUMBERS, out=tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == whole


def test_a_part_is_tried_twice_and_again_on_resume(marks, tmp_path, whole):
    run = tmp_path / "run"
    with pytest.raises(CheckFailedError, match="numbers"):
        cluster_toys.failing(layers=NUMBERS, out=run, ray=True)
    assert len(list(marks.glob("tried-*"))) == 2
    before = {file.name: file.stat().st_mtime_ns for file in (run / "parts").iterdir()}
    assert len(before) == 6
    (marks / "mended").touch()
    cluster_toys.failing(layers=NUMBERS, out=run, ray=True, resume=True)
    assert contents(run) == whole
    assert toy(layers=NUMBERS, out=run, ray=True, resume=True).table.height == 7


def test_files_of_a_part_come_back_and_belong_to_the_run(marks, tmp_path):
    for name, how in (("one", {}), ("many", {"ray": "auto"})):
        cluster_toys.writing(layers=NUMBERS, out=tmp_path / name, **how)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    listed = [(tmp_path / name / "manifest.txt").read_text().split() for name in ("one", "many")]
    assert sorted(listed[0]) == sorted(listed[1])
    assert (tmp_path / "many" / "models" / "6.txt").read_text() == "part 6"


def test_a_changed_model_and_other_libraries_are_refused(tmp_path):
    study = ToyStudy(settings=ToySettings(layers=(1, 2)))
    record = provenance(study.name, study.identity(), study.settings.recorded())
    other = Job(study=ToyStudy, inputs=(), settings=ToySettings(layers=(1, 3)), record=record)
    with pytest.raises(InputError, match="save_pre"):
        load_study(other)
    libraries = {"libraries": {**record["libraries"], "torch": "0.1"}}
    older = Job(study=ToyStudy, inputs=(), settings=study.settings, record=record | libraries)
    with pytest.raises(InputError, match=r"torch 0.1 \(now"):
        load_study(older)
    error = pickle.loads(pickle.dumps(SettingError("layers", "of at least 1", 0)))
    assert (error.setting, str(error)) == ("layers", "expected layers of at least 1; got 0.")


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_a_cluster_does_not_take(tmp_path, monkeypatch):
    refused = {"layers": NUMBERS, "out": tmp_path / "run"}
    with pytest.raises(InputError, match="process"):
        cluster_toys.alone(**refused, ray=True)
    with pytest.raises(InputError, match=r"pass out=... with ray="):
        toy(layers=NUMBERS, ray=True)
    with pytest.raises(InputError, match="address"):
        toy(**refused, ray=3)
    with pytest.raises(InputError, match="memory"):
        idl.audit(idl.Lens(zoo.build("bert")), [[5, 6, 7]], out=tmp_path / "run", ray=True)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="identilens"):
        toy(**refused, ray=True, overwrite=True)
