"""Runs in object storage, against a local S3 server: the files of a local run, whoever dies meanwhile."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fsspec.registry import _registry as registry

import identilens as idl
from helpers import engine_toys, storage, zoo
from helpers.command import failing, identilens
from helpers.killing import contents
from helpers.made_tasks import write_trec
from helpers.storage import BUCKET, objects, s3_server
from helpers.toy import Toy, ToyStudy, toy
from identilens.errors import InputError, OutputFolderError
from identilens.runs import lock
from identilens.runs.bucket import local_folder
from identilens.runs.files import Manifest, take_over
from identilens.runs.workers import Local, Ray
from identilens.studies.audit.study import AuditStudy
from identilens.studies.registry import STUDIES, Entry
from identilens.studies.reports import write_report

TESTS = Path(__file__).parents[1]
pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def client():
    with s3_server() as found:
        yield found


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Each test is as a machine that has seen no run yet."""
    monkeypatch.setattr("identilens.runs.bucket._BUCKETS", {})
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    toy(layers="1-4", out=folder)
    return contents(folder)


def elsewhere(monkeypatch):
    """From now on another machine, which has no copy of any run and sees no process of the first."""
    monkeypatch.setattr("identilens.runs.bucket._BUCKETS", {})
    monkeypatch.setattr(tempfile, "tempdir", tempfile.mkdtemp())


def test_a_run_is_stored_and_read_as_in_a_folder(client, whole, monkeypatch):
    url = f"s3://{BUCKET}/plain"
    made = toy(layers="1-4", out=url)
    assert objects(client, "plain") == whole
    elsewhere(monkeypatch)
    read = Toy.load(url)
    assert read.table.equals(made.table)
    assert read.matrices["text1.layer0.head0.encoder.raw"].tolist() == [[2, 2], [2, 2]]
    with pytest.raises(
        OutputFolderError, match=r"plain already contains this run, finished. Pass resume=True"
    ):
        toy(layers="1-4", out=url)
    with pytest.raises(
        OutputFolderError, match=r"s3://runs/plain contains another run .*overwrite=True"
    ):
        toy(layers="1-3", out=url)
    client.put_object(Bucket=BUCKET, Key="plain/mine.txt", Body=b"mine")
    toy(layers="1-3", out=url, overwrite=True)
    assert objects(client, "plain")["mine.txt"] == b"mine"
    assert "matrices/text3.json" not in objects(client, "plain")


def test_damage_and_strangers_are_named(client, monkeypatch):
    url = f"s3://{BUCKET}/damaged"
    toy(layers="1-2", out=url)
    elsewhere(monkeypatch)
    client.put_object(Bucket=BUCKET, Key="damaged/table.parquet", Body=b"no table")
    with pytest.raises(
        OutputFolderError, match=r"s3://runs/damaged/table.parquet cannot be read: it is not"
    ):
        Toy.load(url)
    client.put_object(Bucket=BUCKET, Key="foreign/mine.txt", Body=b"mine")
    with pytest.raises(OutputFolderError, match="s3://runs/foreign exists and contains no run"):
        toy(layers="1-2", out=f"s3://{BUCKET}/foreign")


PROGRAM = f"""
import sys, os, signal
sys.path.insert(0, {str(TESTS)!r})
from helpers.toy import toy
from identilens.runs.bucket import Bucket
point, done = int(sys.argv[2]), [0]
for name in ("upload", "delete"):
    change = getattr(Bucket, name)
    def counted(*given, _change=change):
        done[0] += 1
        if done[0] > point:
            os.kill(os.getpid(), signal.SIGKILL)
        return _change(*given)
    setattr(Bucket, name, counted)
{{}}
"""


def killed(line, url, point):
    """Run a line of Python in a process that is killed at the so-manieth change of what is stored."""
    command = [sys.executable, "-c", PROGRAM.format(line), url, str(point)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


TOY = 'toy(layers="1-4", out=sys.argv[1])'
AUDIT = "from helpers.storage import audit; audit(out=sys.argv[1])"


@pytest.mark.parametrize("point", [0, 1, 3, 9, 14, 20])
def test_a_killed_run_is_resumed_on_another_machine(client, whole, monkeypatch, point):
    name = f"killed{point}"
    url = f"s3://{BUCKET}/{name}"
    dead = killed(TOY, url, point)
    assert dead.returncode == -9, dead.stderr
    elsewhere(monkeypatch)
    with pytest.raises(
        OutputFolderError,
        match=r"another run is writing to s3://runs/killed.*lock renewed \d+ s ago",
    ):
        toy(layers="1-4", out=url, resume=True)
    monkeypatch.setattr(lock, "DEAD", 0.0)
    before = objects(client, name)
    done = 4 if "table.parquet" in before else sum(key.startswith("parts/") for key in before)
    ToyStudy.runs.clear()
    toy(layers="1-4", out=url, resume=True)
    assert objects(client, name) == whole
    assert len(ToyStudy.runs) == 4 - done


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "run"
    storage.audit(out=folder)
    return contents(folder)


@pytest.mark.parametrize("point", [2, 9, 16])
def test_a_killed_audit_is_resumed_on_another_machine(client, audited, monkeypatch, point):
    name = f"audit{point}"
    dead = killed(AUDIT, f"s3://{BUCKET}/{name}", point)
    assert dead.returncode == -9, dead.stderr
    elsewhere(monkeypatch)
    monkeypatch.setattr(lock, "DEAD", 0.0)
    before = objects(client, name)
    done = 3 if "table.parquet" in before else sum(key.startswith("parts/") for key in before)
    parts, run = [], AuditStudy.run
    monkeypatch.setattr(
        AuditStudy, "run", lambda self, part: [parts.append(part), run(self, part)][1]
    )
    storage.audit(out=f"s3://{BUCKET}/{name}", resume=True)
    assert objects(client, name) == audited
    assert parts == list(range(done, 3))


def test_a_dead_process_of_this_machine_holds_no_lock(client, whole):
    url = f"s3://{BUCKET}/here"
    killed(TOY, url, 9)
    toy(layers="1-4", out=url, resume=True)
    assert objects(client, "here") == whole


def test_of_two_writers_the_second_is_refused_and_one_that_lost_its_lock_stops(client, monkeypatch):
    url = f"s3://{BUCKET}/two"
    run = ToyStudy.run

    def meanwhile(self, part):
        if part == 1:
            with monkeypatch.context() as there:
                elsewhere(there)
                with pytest.raises(
                    OutputFolderError, match="another run is writing to s3://runs/two"
                ):
                    toy(layers="1-3", out=url, resume=True)
                there.setattr(ToyStudy, "run", run)
                there.setattr(lock, "DEAD", 0.0)
                toy(layers="1-3", out=url, resume=True)
            monkeypatch.setattr(lock, "BEAT", -1.0)
        return run(self, part)

    monkeypatch.setattr(ToyStudy, "run", meanwhile)
    with pytest.raises(OutputFolderError, match="two was taken over by another run"):
        toy(layers="1-3", out=url)
    assert json.loads(client.get_object(Bucket=BUCKET, Key="two/provenance.json")["Body"].read())[
        "finished"
    ]


@pytest.mark.parametrize("engine", [Local(workers=2), Ray(workers=2)], ids=["local", "ray"])
def test_parts_of_workers_are_stored(client, tmp_path, engine, monkeypatch):
    short = tempfile.mkdtemp(dir="/tmp")  # Ray's sockets take no long path
    monkeypatch.setenv("TMPDIR", short)  # where the toy marks whom it has killed
    if isinstance(engine, Ray):
        pytest.importorskip("ray")
    toy(layers="1-7", out=tmp_path / "run")
    name = f"workers-{type(engine).__name__}"
    engine_toys.deadly(layers="1-7", out=f"s3://{BUCKET}/{name}", engine=engine)
    assert objects(client, name) == contents(tmp_path / "run")
    assert {path.name for path in Path(short).iterdir()} >= {"killed-1", "killed-4"}
    shutil.rmtree(short, ignore_errors=True)


def test_files_of_another_library_are_listed_and_stored(client, tmp_path):
    for place in (tmp_path, local_folder(f"s3://{BUCKET}/taken")):
        written = [place / "model" / name for name in ("weights.bin", "config.json")]
        (place / "model").mkdir()
        for file in written:
            file.write_text(file.name)
        manifest = Manifest(place)
        take_over(manifest, written)
        assert list(manifest.names) == ["model/weights.bin", "model/config.json"]
    expected = {f"model/{file.name}": file.name.encode() for file in written}
    assert objects(client, "taken") == expected


def test_what_is_missing_is_said(client, monkeypatch):
    with pytest.raises(
        OutputFolderError, match=r"s3://nowhere/run cannot be used: .*Create the bucket first"
    ):
        toy(out="s3://nowhere/run")
    with pytest.raises(OutputFolderError, match="s3://nowhere/run"):
        Toy.load("s3://nowhere/run")
    with pytest.raises(InputError, match=r"elsewhere:// needs"):
        toy(out="elsewhere://a/run")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "s3fs", None)
        without.delitem(registry, "s3")
        with pytest.raises(InputError, match=r"pip install 'identilens\[s3\]'"):
            toy(out=f"s3://{BUCKET}/extra")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(OutputFolderError, match="Give credentials as the tools of AWS take them"):
        toy(out=f"s3://{BUCKET}/secret")


def test_the_command_line(client, monkeypatch):
    monkeypatch.setitem(STUDIES, "toy", Entry("helpers.toy:ToyStudy", "Square some numbers."))
    url = f"s3://{BUCKET}/command"
    done = identilens("toy", "--layers", "1-2", "--out", url, code=0)
    assert f"report: {url}/report.html" in done.output
    assert b"The squares add up to 5" in objects(client, "command")["report.html"]
    elsewhere(monkeypatch)
    assert f"report: {url}/report.html" in identilens("report", url, code=0).output
    assert "Pass --resume to continue it" in failing("toy", "--layers", "1-2", "--out", url)
    assert "Create the bucket first" in failing("toy", "--out", "s3://nowhere/run")
    assert "pass --out FOLDER" in failing("figures", url)


def test_runs_are_verified_and_compared(client, tmp_path, monkeypatch):
    url = f"s3://{BUCKET}/again"
    chosen = ["--model", "bundled", "--layers", "3", "--certain-rows", "0", "--examples", "0"]
    identilens("audit", *chosen, "--text", "Nobody came.", "--out", url, code=0)
    elsewhere(monkeypatch)
    assert "identical, every column" in identilens("verify", url, code=0).output
    identilens(
        "audit",
        *chosen,
        "--text",
        "Snow fell on the harbour.",
        "--out",
        f"s3://{BUCKET}/other",
        code=0,
    )
    elsewhere(monkeypatch)
    said = identilens(
        "compare", url, f"s3://{BUCKET}/other", "--out", tmp_path / "compared.html", code=0
    ).output
    assert "a: bundled on 1 text, audit" in said
    assert (tmp_path / "compared.html").stat().st_size > 10_000
    assert f"{url}-gone contains no result of identilens" in failing("compare", url, f"{url}-gone")
    assert f"{url}-gone contains no result" in failing("verify", f"{url}-gone")


def test_a_study_joins_an_audit(client, tmp_path, monkeypatch):
    lens, texts = idl.Lens(zoo.build("bert")), [[5, 6, 7, 8], [9, 7, 8]]
    url = f"s3://{BUCKET}/joined"
    for place in (url, tmp_path / "joined"):
        idl.audit(lens, texts, certain_rows=0, examples=0, out=place)
        idl.certify(lens, texts[:1], heads=0, queries=[2], out=place)
    assert objects(client, "joined") == contents(tmp_path / "joined")
    manifest = client.get_object(Bucket=BUCKET, Key="joined/manifest.txt")["Body"].read().decode()
    assert any(name.startswith("certify-") for name in manifest.splitlines() if name.endswith("/"))
    elsewhere(monkeypatch)
    assert "What is certain of each attention weight" in write_report(url).read_text(
        encoding="utf-8"
    )


def test_a_training_is_stored_with_its_model(client, tmp_path):
    data = write_trec(tmp_path / "data" / "trec")
    small = {
        "max_length": 16,
        "d_model": 16,
        "attention_heads": 2,
        "feed_forward": 24,
        "batch_size": 8,
    }
    for place in (f"s3://{BUCKET}/trained", tmp_path / "trained"):
        idl.lab.train(task="trec", data=data, d_k=4, epochs=2, **small, out=place)
    found, expected = objects(client, "trained"), contents(tmp_path / "trained")
    assert found.keys() == expected.keys()
    assert found["model/model.safetensors"] == expected["model/model.safetensors"]
