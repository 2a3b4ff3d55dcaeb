"""Runs on several workers give the very files that one process gives, whoever dies meanwhile."""

import importlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import identilens as idl
from helpers import dycks, engine_toys, zoo
from helpers.killing import contents
from helpers.made_tasks import write_trec
from helpers.toy import ToySettings, ToyStudy, toy
from identilens.errors import CheckFailedError, InputError, SettingError
from identilens.lab.dyck.settings import DyckSetting
from identilens.runs.workers import Job, Local, Ray
from identilens.studies.audit.study import audit

TESTS = Path(__file__).parents[1]
ENGINES = [Local(workers=2), Ray(workers=2)]
NUMBERS = "1-7"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Workers import the toys and are checked as users' are."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    )
    pytest.importorskip("ray")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    toy(layers=NUMBERS, out=folder)
    return contents(folder)


@pytest.mark.parametrize("engine", ENGINES, ids=["local", "ray"])
def test_workers_give_what_one_process_gives_and_dead_ones_are_replaced(tmp_path, whole, engine):
    told = []
    engine_toys.deadly(
        layers=NUMBERS, out=tmp_path / "run", engine=engine, progress=lambda *place: told.append(place)
    )  # fmt: skip
    assert contents(tmp_path / "run") == whole
    assert told[-1] == (7, 7, told[-1][2])
    assert told[-1][2].endswith("workers, 2 lost")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "killed-1", "killed-4"}


def test_a_cluster_of_this_machine_is_for_this_machine_alone(monkeypatch, tmp_path):
    """What Ray is told: an address of its own is the loopback one, and its switch for several machines is off."""
    ray = pytest.importorskip("ray")
    constants = importlib.import_module("ray._private.ray_constants")
    told = []

    def init(address, **options):
        told.append((address, options.get("_node_ip_address"), constants.ENABLE_RAY_CLUSTER))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "put", lambda content: content)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    before = constants.ENABLE_RAY_CLUSTER
    job = Job(ToyStudy, (), ToySettings(), {}, "", tmp_path)
    for engine in (Ray(), Ray(address="auto")):
        with engine.opened(job):
            pass
    assert told == [("local", "127.0.0.1", False), ("auto", None, before)]
    assert before == constants.ENABLE_RAY_CLUSTER
    monkeypatch.setattr(ray, "__version__", "2.58.1")
    with pytest.raises(InputError, match="ray 2.58.1 lets anyone run code"), Ray().opened(job):
        pass


def listening(pids):
    """The addresses at which processes listen, in hexadecimal as the kernel writes them."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(str(link.readlink()))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_cluster_of_this_machine_listens_on_the_loopback_address(tmp_path):
    ray = pytest.importorskip("ray")
    with Ray().opened(Job(ToyStudy, (), ToySettings(), {}, "", tmp_path)):
        session = ray._private.worker.global_worker.node.get_session_dir_path()
        pids = [os.getpid()]
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                pids += [int(entry.parent.name)] if session.encode() in entry.read_bytes() else []
        found = listening(pids)
    assert len(pids) > 2
    assert found
    assert all(address.endswith("0100007F") for address in found), found
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_part_that_kills_every_worker_is_named_and_all_others_are_saved(tmp_path):
    with pytest.raises(CheckFailedError, match=r"1 of 7 parts failed; .*killed or out of memory"):
        engine_toys.fatal(layers=NUMBERS, out=tmp_path / "run", engine=Local())
    assert len(list((tmp_path / "run" / "parts").iterdir())) == 6


def test_a_part_that_fails_is_named_and_tried_again_on_resume(tmp_path, whole):
    with pytest.raises(
        CheckFailedError, match=r"1 of 7 parts failed; .*failed.jsonl.*no luck.*resume=True"
    ):
        engine_toys.failing(layers=NUMBERS, out=tmp_path / "run", engine=Local())
    (row,) = [
        json.loads(line) for line in (tmp_path / "run" / "failed.jsonl").read_text().splitlines()
    ]
    assert row == {"part": 1, "numbers": [1, 1], "error": "no luck"}
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    (tmp_path / "mended").touch()
    engine_toys.failing(layers=NUMBERS, out=tmp_path / "alone", resume=True)
    assert contents(tmp_path / "alone") == whole
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "parts").iterdir()}
    assert len(before) == 6
    engine_toys.failing(layers=NUMBERS, out=tmp_path / "run", engine=Local(), resume=True)
    (tmp_path / "mended").unlink()
    assert contents(tmp_path / "run") == whole


PROGRAM = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from helpers import engine_toys
from identilens.runs.workers import Local
engine_toys.slow(layers={NUMBERS!r}, out=sys.argv[1], engine=Local())
"""


def test_a_script_needs_no_guard(tmp_path, whole):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    subprocess.run(
        [sys.executable, script, tmp_path / "run"], check=True, capture_output=True, timeout=300
    )
    assert contents(tmp_path / "run") == whole


def test_a_killed_driver_leaves_no_workers_and_the_run_is_resumed(tmp_path, whole):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path / "run"])
    marker = "parts/000001.safetensors"
    while not (tmp_path / "run" / marker).exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    engine_toys.slow(layers=NUMBERS, out=tmp_path / "run", engine=Local(), resume=True)
    assert contents(tmp_path / "run") == whole


def test_what_cannot_be_shared_says_so(tmp_path):
    with pytest.raises(
        InputError, match=r"toy runs in one process: each part needs the one before"
    ):
        engine_toys.alone(layers=NUMBERS, out=tmp_path / "run", engine=Local())
    with pytest.raises(InputError, match=r"pass out="):
        toy(layers=NUMBERS, engine=Local())
    with pytest.raises(InputError, match="expected workers of at least 1"):
        Local(workers=0)


def test_a_model_made_in_memory_is_sent_once_and_a_changed_one_refused(tmp_path):
    from identilens import Lens, load

    lens = Lens(zoo.build("bert"))
    texts = [[5, 6, 7, number] for number in range(40)]
    given = {"certain_rows": 0, "examples": 0}
    audit(lens, texts, out=tmp_path / "one", **given)
    audit(lens, texts, out=tmp_path / "many", engine=Local(), **given)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    lens.model.save_pretrained(tmp_path / "model")
    changed = load(tmp_path / "model", device="cpu")
    next(changed.model.parameters()).data[0] += 1
    for number, engine in enumerate(ENGINES):
        with pytest.raises(
            InputError, match="has other inputs than the run was started with: model sha256 is"
        ):
            audit(changed, texts, out=tmp_path / f"changed{number}", engine=engine, **given)
    error = pickle.loads(pickle.dumps(SettingError("layers", "of at least 1", 0)))
    assert (error.setting, str(error)) == ("layers", "expected layers of at least 1; got 0.")


def test_training_runs_are_parts_too(tmp_path):
    data = write_trec(tmp_path / "data" / "trec")
    grid = {"tasks": "trec", "heads": "concat", "data": data, "epochs": 1, "max_length": 16, "d_model": 16,
            "attention_heads": 2, "feed_forward": 24, "batch_size": 8}  # fmt: skip
    one = idl.lab.sweep(**grid, d_k=(1, 3), out=tmp_path / "one")
    many = idl.lab.sweep(**grid, d_k=(1, 3), out=tmp_path / "many", engine=Local())
    assert_frame_equal(many.table.drop("seconds"), one.table.drop("seconds"))
    (tmp_path / "many" / "runs" / "mine.txt").write_text("mine")
    idl.lab.sweep(**grid, d_k=2, out=tmp_path / "many", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "many" / "runs").iterdir()) == [
        "mine.txt", "trec-concat-dk2-seed0"
    ]  # fmt: skip


def test_stacks_of_seeds_are_parts(tmp_path):
    settings = DyckSetting("tiny", dycks.MINIMAL, dycks.QUICK)
    given = {"seeds": [0, 1, 2], "at_once": 1, **dycks.MEASURING}
    idl.lab.train_dyck([settings], **given, out=tmp_path / "one")
    idl.lab.train_dyck([settings], **given, out=tmp_path / "many", engine=Local())
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert len(list((tmp_path / "many" / "models" / "tiny").iterdir())) == 3
