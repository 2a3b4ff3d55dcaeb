"""Runs on a Ray cluster give what one process gives, whoever dies meanwhile."""

import os
import pickle
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import identilens as idl
from helpers import cluster_toys, zoo
from helpers.killing import contents
from helpers.toy import ToySettings, ToyStudy, toy
from identilens.errors import CheckFailedError, InputError, SettingError
from identilens.runs.cluster import load_study
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
    assert told[0] == (0, 7, "")
    assert [place[0] for place in told] == [*range(8)]
    assert {"killed-1", "killed-4"} <= {path.name for path in marks.iterdir()}


def test_parts_that_fail_twice_are_named_and_all_others_are_saved(marks, tmp_path, whole):
    with pytest.raises(CheckFailedError) as failed:
        cluster_toys.fatal(layers=NUMBERS, out=tmp_path / "run", ray=True)
    words = str(failed.value)
    assert words.startswith("2 of 7 parts failed, each of them twice, among them part ")
    assert "part 2: " in words or "part 3: ZeroDivisionError: of a kind" in words
    assert "resume=True" in words
    assert len(list((tmp_path / "run" / "parts").iterdir())) == 5
    toy(layers=NUMBERS, out=tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == whole


class Here:
    """A cluster of this process: what is handed over is pickled, and a task runs when it is waited for."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            cause = None

    class Reference(bytes):
        pass

    def __init__(self):
        self.calls, self.waiting = [], []

    def is_initialized(self):
        return bool(self.calls) and self.calls[-1] != "shutdown"

    def init(self, address, **_options):
        if address == "nowhere":
            raise ValueError("no such\ncluster")
        self.calls += ["init", address]

    def shutdown(self):
        self.calls.append("shutdown")

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, content):
        return self.Reference(pickle.dumps(content))

    def remote(self, **options):
        self.options = options
        return lambda task: SimpleNamespace(remote=partial(partial, task))

    def wait(self, running, num_returns):
        assert num_returns == 1
        self.waiting.append(len(running))
        return running[-1:], running[:-1]

    def get(self, done):
        if isinstance(done, self.Reference):
            return pickle.loads(done)
        try:
            return done()
        except (InputError, ZeroDivisionError) as error:
            failed = self.exceptions.RayError(f"first\n{type(error).__name__}: {error}\n")
            failed.cause = error
            raise failed from None


@pytest.fixture
def here(monkeypatch, tmp_path):
    ray = Here()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv(cluster_toys.MARKS, str(tmp_path))
    return ray


def test_parts_come_back_in_any_order_with_their_files(here, tmp_path):
    told = []
    cluster_toys.writing(
        layers="1-7", out=tmp_path / "many", ray="auto", progress=lambda *place: told.append(place)
    )
    cluster_toys.writing(layers="1-7", out=tmp_path / "one")
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    listed = [(tmp_path / name / "manifest.txt").read_text().split() for name in ("one", "many")]
    assert sorted(listed[0]) == sorted(listed[1])
    assert here.calls == ["init", "auto", "shutdown"]
    assert told == [(0, 7, ""), *((done, 7, "") for done in range(1, 8))]
    assert here.waiting == [4, 4, 4, 4, 3, 2, 1], "two of each core wait"
    assert here.options == {
        "num_cpus": 1, "num_gpus": 0, "max_retries": 1, "retry_exceptions": True,
    }  # fmt: skip


def test_failed_parts_are_named_and_tried_again_on_resume(here, tmp_path):
    run = {"layers": "1-7", "out": tmp_path / "run", "ray": True}
    with pytest.raises(CheckFailedError, match=r"1 of 7 parts .* part 1: no luck. All"):
        cluster_toys.failing(**run)
    assert here.calls == ["init", "local", "shutdown"]
    assert len(list((tmp_path / "run" / "parts").iterdir())) == 6
    (tmp_path / "mended").touch()
    told = []
    cluster_toys.failing(**run, resume=True, progress=lambda *place: told.append(place))
    assert told == [(6, 7, ""), (7, 7, "")]
    here.calls = ["running"]
    assert cluster_toys.writing(layers="1-2", out=tmp_path / "run", ray=True, overwrite=True)
    assert here.calls == ["running"], "a cluster that the user has started goes on"
    here.calls = []
    with pytest.raises(InputError, match=r"nowhere cannot be reached \(no such\)"):
        toy(layers="1-7", out=tmp_path / "other", ray="nowhere")


def test_a_changed_model_and_other_libraries_are_refused(tmp_path):
    study = ToyStudy(settings=ToySettings(layers=(1, 2)))
    record = provenance(study.name, study.identity(), study.settings.recorded())
    other = (ToyStudy, (), ToySettings(layers=(1, 3)), record)
    with pytest.raises(InputError, match="save_pre"):
        load_study(other)
    libraries = {"libraries": {**record["libraries"], "torch": "0.1"}}
    older = (ToyStudy, (), study.settings, record | libraries)
    with pytest.raises(InputError, match=r'torch is "0.1" there'):
        load_study(older)
    error = pickle.loads(pickle.dumps(SettingError("layers", "of at least 1", 0)))
    assert (error.setting, str(error)) == ("layers", "expected layers of at least 1; got 0.")


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_a_cluster_does_not_take(tmp_path, monkeypatch):
    refused = {"layers": NUMBERS, "out": tmp_path / "run"}
    with pytest.raises(InputError, match="process"):
        cluster_toys.alone(**refused, ray=True)
    with pytest.raises(InputError, match=r"ray are for a folder"):
        toy(layers=NUMBERS, ray=True)
    with pytest.raises(InputError, match="memory"):
        idl.audit(idl.Lens(zoo.build("bert")), [[5, 6, 7]], out=tmp_path / "run", ray=True)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="identilens"):
        toy(**refused, ray=True, overwrite=True)
