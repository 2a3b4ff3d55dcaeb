"""Workers without processes, and the small files of a run: requests, options, comparisons, locks, folders."""

import json
import os
import sys
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import polars as pl
import pytest

from helpers.toy import Toy, ToySettings, ToyStudy, toy
from identilens.errors import CheckFailedError, InputError, OutputFolderError, SettingError
from identilens.runs import workers
from identilens.runs.files import Manifest, write_folder
from identilens.runs.provenance import model_and_texts, provenance
from identilens.runs.request import NAME, Request
from identilens.runs.study import FAILED, study_function
from identilens.runs.tables import markdown_table
from identilens.runs.toml import read_toml, toml_value
from identilens.runs.workers import Job, Local, PartResult, Ray, compute_parts, load_study, run_part


class Here:
    """A worker in this process; ``deaths`` names what dies how often: parts, or None for loading."""

    def __init__(self, job, deaths):
        self.job, self.deaths, self.closed = job, deaths, 0
        self.loading = self._future(None, load_study, job)

    def submit(self, function, part):
        return self._future(part, function, part)

    def close(self):
        self.closed += 1

    def _future(self, name, function, *given):
        future = Future()
        if self.deaths.get(name, 0):
            self.deaths[name] -= 1
            future.set_exception(RuntimeError("killed\nby hand"))
        else:
            future.set_result(function(*given))
        return future


class Failing(ToyStudy):
    def run(self, part):
        if part == 1:
            raise ValueError
        if part == 2:
            raise InputError("no luck")
        return super().run(part)


class Engine(workers.Engine):
    def __init__(self, count, deaths=None):
        self.workers, self.deaths, self.started = count, deaths or {}, []

    @contextmanager
    def opened(self, job):
        def start(number):
            assert number == len(self.started)
            self.started.append(Here(job, self.deaths))
            return self.started[-1]

        yield start


def job_of(tmp_path, study=ToyStudy, **settings):
    made = study(settings=ToySettings(**settings))
    record = provenance(made.name, made.identity(), made.settings.recorded())
    (tmp_path / "run").mkdir(exist_ok=True)
    return Job(study, (), made.settings, record, str(tmp_path / "run"), tmp_path)


def computed(tmp_path, engine, parts=(0, 1, 2), study=ToyStudy):
    said = {}
    failed = compute_parts(
        job_of(tmp_path, study, layers=(1, 2, 3)),
        engine,
        list(parts),
        lambda part, result, words: said.update({part: (result, words)}),
    )
    return failed, said


@pytest.fixture(autouse=True)
def unloaded():
    yield
    workers._LOADED.clear()


def test_every_part_is_computed_by_the_workers(tmp_path):
    engine = Engine(2)
    failed, said = computed(tmp_path, engine)
    assert failed == {}
    assert sorted(said) == [0, 1, 2]
    assert {words for _, words in said.values()} == {"2 workers"}
    assert all(result.content and not result.error for result, _ in said.values())
    assert [worker.closed for worker in engine.started] == [1, 1]
    one = Engine(5)
    computed(tmp_path, one, parts=(1,))
    assert len(one.started) == 1


def test_a_worker_that_dies_is_replaced_and_its_part_tried_again(tmp_path):
    engine = Engine(1, {1: 2})
    failed, said = computed(tmp_path, engine)
    assert failed == {}
    assert len(engine.started) == 3
    assert [said[part][1] for part in (0, 1, 2)] == [
        "1 workers", "1 workers, 2 lost", "1 workers, 2 lost",
    ]  # fmt: skip


def test_a_part_that_kills_three_workers_has_failed(tmp_path):
    engine = Engine(1, {1: 3})
    failed, said = computed(tmp_path, engine)
    assert failed == {1: "its worker died, killed or out of memory (killed)"}
    assert sorted(said) == [0, 2]
    assert len(engine.started) == 4


def test_workers_that_cannot_start_end_the_run(tmp_path):
    engine = Engine(1, {None: 3})
    with pytest.raises(InputError, match=r"workers cannot start: its worker died.*\(killed\)"):
        computed(tmp_path, engine)
    assert len(engine.started) == 3
    assert all(worker.closed for worker in engine.started)
    twice = Engine(1, {None: 2})
    assert computed(tmp_path, twice)[0] == {}


def test_a_part_that_fails_is_told_and_the_others_go_on(tmp_path):
    failed, said = computed(tmp_path, Engine(2), study=Failing)
    assert failed.keys() == {1, 2}
    assert "ValueError" in failed[1]
    assert failed[2] == "no luck"
    assert list(said) == [0]


def test_a_run_on_workers_is_that_of_one_process_and_names_what_failed(tmp_path):
    told = []
    options = {"layers": (2, 3, 5), "progress": lambda *place: told.append(place)}
    found = toy(out=tmp_path / "run", engine=Engine(2), **options)
    assert found.table["square"].to_list() == [4, 9, 25]
    assert told[0] == (0, 3, "workers start")
    assert sorted(place[0] for place in told) == [0, 1, 2, 3]
    assert {place[1] for place in told} == {3}
    with pytest.raises(CheckFailedError, match=r"2 of 3 parts failed; .*failed.jsonl names them"):
        study_function(Failing, "failing")(out=tmp_path / "other", engine=Engine(2), **options)
    lines = (tmp_path / "other" / FAILED).read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["part"], row["numbers"]) for row in rows] == [(1, [1, 1]), (2, [2, 2])]
    assert rows[1]["error"] == "no luck"


def test_what_a_part_gives_and_writes(tmp_path):
    assert load_study(job_of(tmp_path, Failing, layers=(1, 2, 3))) is None
    assert run_part(0).error == ""
    assert "ValueError" in run_part(1).error
    assert run_part(2) == PartResult(error="no luck")


def test_a_study_of_other_inputs_is_refused(tmp_path):
    job = job_of(tmp_path, layers=(1, 2))
    other = Job(ToyStudy, (), ToySettings(layers=(1, 3)), job.record, job.location, tmp_path)
    error = load_study(other)
    assert isinstance(error, InputError)
    assert "has other inputs than the run was started with: " in str(error)
    assert "(save_pretrained)" in str(error)
    versions = {**job.record, "libraries": {**job.record["libraries"], "torch": "0.1"}}
    older = Job(ToyStudy, (), job.settings, versions, job.location, tmp_path)
    assert "torch 0.1 (now" in str(load_study(older))
    with pytest.raises(InputError, match="torch 0.1"):
        compute_parts(older, Engine(1), [0], lambda *given: None)

    class Broken(ToyStudy):
        def __init__(self, *given, **options):
            raise ValueError("broken")

    broken = Job(Broken, (), job.settings, job.record, job.location, tmp_path)
    assert "cannot be made:\n" in str(load_study(broken))
    assert "ValueError: broken" in str(load_study(broken))


def test_files_threads_and_gpus_of_a_worker(tmp_path, monkeypatch):
    threads, restored = [], []
    monkeypatch.setattr(workers.torch, "set_num_threads", threads.append)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    class Reference:
        def restored(self, folder):
            restored.append((folder / "sub" / "one.txt").read_bytes())
            return "text"

    class Given(ToyStudy):
        def __init__(self, one, *, settings):
            assert one == "text"
            super().__init__(settings=settings)

    made = job_of(tmp_path, layers=(1,))
    location = tmp_path / "not" / "there"
    job = Job(Given, (Reference(),), made.settings, made.record, str(location), tmp_path / "none")
    assert load_study(job, {"sub/one.txt": b"held"}, 3, 1) is None
    assert location.is_dir()
    assert restored == [b"held"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert threads == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    load_study(job, {"sub/one.txt": b"held"}, 3)
    assert threads == [3]


def test_an_actor_that_dies_is_not_started_again_behind_our_back(monkeypatch, tmp_path):
    actors = []
    ray = SimpleNamespace(
        __version__="2.99.0",
        is_initialized=lambda: True,
        put=lambda content: content,
        remote=lambda **options: actors.append(options) or (lambda one: one),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with Ray(gpus_per_worker=0.5).opened(Job(ToyStudy, (), ToySettings(), {}, "", tmp_path)):
        assert actors == [{"num_cpus": 1, "num_gpus": 0.5, "max_restarts": 0}]


def test_numbers_of_workers():
    assert (Local().workers, Local(1).workers, Ray(gpus_per_worker=0.5).gpus_per_worker) == (
        2,
        1,
        0.5,
    )
    for made in (lambda: Local(0), lambda: Ray(workers=0), lambda: Ray(gpus_per_worker=-0.5)):
        with pytest.raises(SettingError, match="at least"):
            made()


def test_options_as_toml(tmp_path):
    file = tmp_path / "options.toml"
    values = {"a": [1, 0.5, True], "b": "x\x7fy\n", "c": False, "d": ("p", "q")}
    file.write_text("".join(f"{name} = {toml_value(value)}\n" for name, value in values.items()))
    assert read_toml(file) == values | {"d": ["p", "q"]}
    with pytest.raises(TypeError):
        toml_value(None)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    file.write_text("a = ")
    with pytest.raises(InputError, match="is not valid TOML"):
        read_toml(file)
    # The table is the first level.
    file.write_text(f"a = {'[' * 9}1{']' * 9}")
    assert list(read_toml(file)) == ["a"]
    file.write_text(f"a = {'[' * 10}1{']' * 10}")
    with pytest.raises(InputError, match="nested more than 10 deep"):
        read_toml(file)


def test_a_file_of_options_has_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr("identilens.runs.toml._LARGEST", 8)
    file = tmp_path / "options.toml"
    file.write_text("a = 1234")
    assert read_toml(file) == {"a": 1234}
    file.write_text("a = 12345")
    with pytest.raises(InputError, match="more than 8 bytes"):
        read_toml(file)


def test_a_request_is_read_as_it_was_written(tmp_path, monkeypatch):
    there = tmp_path / "texts.txt"
    there.touch()
    options = {"file": there, "layers": (1, 2), "share": 0.5, "none": None, "odd": object()}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "encoder").mkdir()
    options |= {"model": "encoder", "dataset": "hub/name", "kind": "encoder"}
    with_manifest = Manifest(tmp_path)
    with_manifest.file.touch()
    request = Request("lab toy", options, ["texts"])
    request.write(tmp_path)
    with pytest.raises(OutputFolderError, match=f"does not list {NAME}"):
        Request.read(tmp_path, ["lab toy"])
    with_manifest.add(NAME)
    found = Request.read(tmp_path, ["toy", "lab toy"])
    assert found.study == "lab toy"
    assert found.options == {
        "file": str(there), "layers": [1, 2], "share": 0.5, "model": str(tmp_path / "encoder"),
        "dataset": "hub/name", "kind": "encoder",
    }, "a model's folder is found from everywhere; a word that a folder has as its name stays a word"  # fmt: skip
    assert list(found.lost) == ["texts", "odd"]
    assert (tmp_path / NAME).read_text().splitlines()[0] == (
        f"# Run it again: identilens rerun FOLDER, or identilens lab toy --config {NAME} --out NEW"
    )
    with pytest.raises(InputError, match=r"one of \[audit\], \[mixing\]"):
        Request.read(tmp_path, ["audit", "mixing"])
    (tmp_path / NAME).write_text("seed = 3\n" + (tmp_path / NAME).read_text())
    with pytest.raises(InputError, match=r"one study, all of them under one of \[toy\]"):
        Request.read(tmp_path, ["toy"])
    with pytest.raises(InputError, match="it is no run"):
        Request.read(tmp_path / "none", ["toy"])


def test_inputs_given_in_python_are_spelled_out_if_they_are_few():
    assert Request.of("toy", ["texts"], ["a"], {"seed": 1}).options == {
        "text": ["a"], "pairs": False, "seed": 1,
    }  # fmt: skip
    assert Request.of("toy", ["texts"], [[("a", "b")]], {}).options == {
        "text": ["a", "b"], "pairs": True,
    }  # fmt: skip
    for lost in ([["a"], 1], [[1, 2]], [[]], [["a" * 10**6]]):
        assert Request.of("toy", ["texts"], lost, {}).lost


def run(digest=None, texts=("t0", "t1"), count=2):
    return {"model": {"sha256": digest}, "texts": {"count": count, "sha256": list(texts)}}


@pytest.mark.parametrize(
    ("there", "here", "same", "words"),
    [
        (None, run(), False, "it has no provenance to compare with"),
        (run("a"), run("a"), True, "the same model and texts"),
        (run(), run(), True, "the same texts"),
        (run("a", (), 0), run("a", (), 0), True, "the same model"),
        (run(None, (), 0), run(None, (), 0), True, "it has no digests of a model or texts"),
        (run("a", ("t0", "x")), run("a"), False, "text 1 differs"),
        (run("a", ("x", "y")), run("a"), False, "text 0 differs"),
        (run("a", ("all",), 9), run("a", ("other",), 9), False, "the texts differ"),
        (run("a", ("all",), 9), run("a", ("all",), 9), True, "the same model and texts"),
    ],
)
def test_whether_two_runs_have_one_model_and_texts(there, here, same, words):
    assert model_and_texts(there, here) == (same, words)


def test_other_models_and_numbers_of_texts_are_named():
    same, words = model_and_texts(run("a"), run("b", ("t0",), 1))
    assert not same
    assert "sha256 of the model" in words
    assert "number of texts" in words


def test_tables_as_markdown_and_csv(tmp_path):
    frame = pl.DataFrame({"name": ["a", None], "share": [0.5, 0.12345], "n": [1, 20]})
    assert markdown_table(frame) == (
        "| name | share | n |\n| --- | ---: | ---: |\n| a | 0.500 | 1 |\n|  | 0.123 | 20 |"
    )
    assert "| 0.1 |" in markdown_table(frame, 1)

    class Lists(Toy):
        schema: ClassVar = {
            "table": {"number": pl.Int64, "parts": pl.List(pl.Int64)},
            "notes": {"word": pl.String},
        }

    tables = {
        "table": pl.DataFrame({"number": [1], "parts": [[1, 2]]}),
        "notes": pl.DataFrame({"word": ["w"]}),
    }
    paths = Lists.of(tables, {}).to_csv(tmp_path / "csv")
    assert [path.name for path in paths] == ["table.csv", "notes.csv"]
    held = pl.read_csv(paths[0])
    assert held.columns == ["number", "parts"]
    assert json.loads(held["parts"][0]) == [1, 2]
    assert Lists.of(tables, {}).to_pandas().shape == (1, 2)


def test_a_folder_is_filled_beside_its_place(tmp_path):
    target = tmp_path / "model"
    (target / "sub").mkdir(parents=True)
    (target / "kept.txt").write_text("kept")
    seen = []

    def write(folder):
        seen.append(folder)
        (folder / "sub").mkdir()
        (folder / "sub" / "one.txt").write_text("new")
        (folder / "sub" / "one.txt").chmod(0o600)

    write_folder(target, write)
    assert (target / "sub" / "one.txt").read_text() == "new"
    assert (target / "kept.txt").read_text() == "kept"
    plain = tmp_path / "plain"
    plain.touch()
    assert (target / "sub" / "one.txt").stat().st_mode & 0o777 == plain.stat().st_mode & 0o777
    assert not seen[0].exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "plain"]

    def fails(folder):
        (folder / "two.txt").touch()
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_folder(target, fails)
    assert not (target / "two.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "plain"]
