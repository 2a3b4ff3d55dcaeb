"""What commands hand on and print, without their work: models, studies and reports are stood in for."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

import identilens as idl
from helpers.command import command, failing, identilens
from helpers.toy import Toy, ToySettings, toy
from identilens.cli import app, commands, explore, options, reproductions, selfcheck
from identilens.cli.options import ModelOptions, RayOptions, RunOptions
from identilens.demo.examples import STORY
from identilens.errors import CheckFailedError, InputError
from identilens.models.proof import Check
from identilens.reproduce.options import SharedSettings
from identilens.studies.registry import STUDIES, Entry

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

TOY = Entry("helpers.toy:ToyStudy", "Square.", "helpers.toy:ToySettings", takes=())
TEN = [word for letter in "abcdefghij" for word in ("--text", letter)]


def test_the_help_of_the_program_is_short_and_names_every_command():
    said = identilens("--help", code=0).output.rstrip()
    assert len(said.splitlines()) <= 20
    for name in (*STUDIES, *app.COMMANDS, "reproduce"):
        if " " not in name and name != "selfcheck":
            assert re.search(rf"\b{name}\b", said), name
    assert "│ dyck " in identilens("lab", "--help", code=0).output


@pytest.mark.parametrize(
    ("given", "tokenizer", "inputs"),
    [
        ([], object(), list(selfcheck._TEXTS)), ([], None, [list(range(3, 14)), list(range(5, 9))]),
        (TEN, object(), list("abcdefgh")), ([*TEN, "--limit", 9], object(), list("abcdefghi")),
    ],
)  # fmt: skip
def test_what_is_checked(monkeypatch, given, tokenizer, inputs):
    asked = []

    def checked(lens, texts):
        asked.append(texts)
        return [Check("one", 0.00125, 1e-2, "relative"), Check("two", 0.0, 0.0, "number")]

    monkeypatch.setattr(ModelOptions, "load", lambda _: SimpleNamespace(tokenizer=tokenizer))
    monkeypatch.setattr(selfcheck, "proof", checked)
    written = identilens("selfcheck", "--model", "m", *given, code=0).output
    assert asked == [inputs]
    assert "selfcheck of m" in written
    assert "one 0.00125 0.01 relative yes" in written
    assert "two 0 0 number yes" in written


def test_comparisons_reports_and_figures(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(STUDIES, "toy", TOY)
    toy(out="x")
    toy(layers=5, out="y")
    made = idl.compare(idl.load_result("x"), idl.load_result("y"))
    assert "toy (2)" in identilens("compare", "x", "y", code=0).output
    done = identilens("compare", "x", "y", "--json", code=0)
    assert json.loads(done.output) == made.to_dicts()
    assert identilens("export", "x", code=0).output == "report: x/report.html"
    identilens("export", "x", "--out", "o.html", code=0)
    figures = ("export", "x", "--to", "figures")
    written = identilens(*figures, code=0).output.split()
    assert written[-3:] == [f"x/figures/squares.{form}" for form in ("png", "svg", "pdf")]
    assert "@software{identilens," in written, "a figure is cited"
    identilens(*figures, "--out", "o", code=0)
    assert len(list(Path("o").iterdir())) == 3
    done = identilens("export", "x", "--to", "csv", code=0)
    assert done.output == "x/tables/table.csv x/tables/notes.csv"
    identilens("export", "x", "--to", "json", "--out", "a.json", code=0)
    assert Path("a.json").read_text() == Toy.load("x").to_json()


def test_the_explorer_is_given_models_texts_and_settings(monkeypatch, tmp_path):
    served, loaded = [], []

    def serve(lenses, texts, *, announce, **options):
        served.append((lenses, texts, options))
        announce("http://here")

    server = SimpleNamespace(opened_port=lambda port, host: f"port {port} of {host}", serve=serve)
    monkeypatch.setattr(explore, "import_module", lambda name: server)
    monkeypatch.setattr(
        ModelOptions, "load", lambda options: loaded.append(options) or options.model
    )
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(f"line {at}" for at in range(120)))
    words = [
        "--model",
        "a",
        "--model",
        "b",
        "--text",
        "t",
        "--file",
        file,
        "--port",
        7,
        "--host",
        "0.0.0.0",
    ]
    written = identilens("explore", *words, "--dtype", "float32", code=0)
    assert written.output.startswith("explorer: http://here warning: all who have this address")
    ((lenses, texts, options),) = served
    assert lenses == {"a": "a", "b": "b"}
    assert texts == ["t", *(f"line {at}" for at in range(99))]
    assert options == {
        "opened": "port 7 of 0.0.0.0",
        "load": {"dtype": "float32"},
    }
    assert {(one.device, one.dtype) for one in loaded} == {(None, "float32")}
    identilens("explore", "--model", "a", "--device", "cpu", code=0)
    assert served[1][2] == {
        "opened": "port 8765 of 127.0.0.1",
        "load": {"device": "cpu"},
    }
    opened = []
    monkeypatch.setattr(explore.webbrowser, "open", opened.append)
    identilens("explore", code=0)
    assert not opened, "the output goes to a program, not to a person"
    terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(explore, "sys", terminal)
    identilens("explore", "--no-browser", code=0)
    assert not opened
    identilens("explore", code=0)
    assert opened == ["http://here"]
    assert served[-1][:2] == ({"bundled-decoder": "bundled-decoder"}, [STORY, *idl.examples()])
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "identilens.explorer.server", raising=False)
    assert "pip install 'identilens[explorer]'" in failing("explore", "--model", "a")


def test_a_reproduction_writes_here(monkeypatch, tmp_path, capsys):
    asked = []

    def make(settings, out, **options):
        asked.append((settings, out, options))
        return SimpleNamespace(findings="found")

    class Shared(ToySettings, SharedSettings):
        """Settings of runs that a cluster shares."""

    written = []
    monkeypatch.setattr(reproductions, "figure_named", lambda name: make)
    monkeypatch.setattr(reproductions, "REPRODUCTIONS", {"one": "One."})
    monkeypatch.setattr(reproductions, "OPTIONS", {"one": Shared})
    monkeypatch.setattr(reproductions, "write_reproduction", lambda *given: written.append(given))
    command = reproductions.reproduction_command("one")
    assert list(command.__signature__.parameters) == ["settings", "run", "cluster"]
    out = tmp_path / "out"
    command(run=RunOptions(out=str(out)), cluster=RayOptions(ray="auto"))
    ((settings, where, options),) = asked
    assert (type(settings), where) == (Shared, out)
    assert options == {"resume": False, "overwrite": False, "ray": "auto"}
    assert written[0][0] == "one"
    assert capsys.readouterr().out == f"found\nresults: {out}\n"
    out.write_text("a file")
    with pytest.raises(InputError, match="is no folder"):
        command(run=RunOptions(out=str(out)))
    monkeypatch.setattr(reproductions, "OPTIONS", {"one": ToySettings})
    assert list(reproductions.one.__signature__.parameters) == ["settings", "run"]


def test_a_cluster_is_this_machine_or_an_address(monkeypatch):
    asked = []
    monkeypatch.setattr(commands, "load_inputs", dict.fromkeys)
    monkeypatch.setitem(STUDIES, "lab reversal", TOY)
    monkeypatch.setattr(commands, "write_report", Path)

    def ran(study, *, ray, **options):
        asked.append((ray, options["out"]))

    monkeypatch.setattr(commands, "run_study", ran)
    for typed in (
        ("--out", "x"),
        ("--out", "x", "--ray", "local"),
        ("--ray=10.0.0.1:6379", "-o", "x"),
    ):
        identilens("lab", "reversal", *typed, "-q", code=0)
    assert asked == [(ray, "x") for ray in (False, "local", "10.0.0.1:6379")]


def test_a_model_is_loaded_as_it_was_asked_for(monkeypatch, tmp_path):
    loaded, imported = [], []
    monkeypatch.setattr(options, "load", lambda **given: loaded.append(given))
    monkeypatch.setattr(options, "import_module", imported.append)
    given = {
        "device": None, "device_map": "disk", "dtype": "float16", "revision": "r", "trust_remote_code": True,
    }  # fmt: skip
    ModelOptions(model=str(tmp_path), **given).load()
    assert loaded == [{"model": str(tmp_path), **given}]
    assert tuple(imported) == options.LAB_MODELS


RESUMED = "With --out finished parts are saved: the same command with --resume continues."


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CheckFailedError("it is not so"), 1, "error: it is not so"),
        (InputError("pass columns=... or max_length=True"), 2, "error: pass --column or --max-length"),
        (KeyboardInterrupt(), 130, f"error: stopped. {RESUMED}"),
        (signal.SIGTERM, 130, f"error: stopped. {RESUMED}"),
    ],
)  # fmt: skip
def test_how_a_command_ends(monkeypatch, error, code, said):
    def stopped(*_, **__):
        if error is signal.SIGTERM:
            os.kill(os.getpid(), error)
        raise error

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(app, "make_app", lambda: stopped)
    assert identilens(code=code).error == said
    assert signal.getsignal(signal.SIGTERM) == before


def test_errors_of_others_are_not_hidden_and_a_reader_may_leave(monkeypatch, tmp_path):
    def ends(error):
        def raised(*_, **__):
            raise error

        monkeypatch.setattr(app, "make_app", lambda: raised)

    ends(RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        app.main()
    ends(BrokenPipeError())
    with (tmp_path / "out").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as stopped:
            app.main()
        stream.write("nobody reads this")
    assert stopped.value.code == 128 + signal.SIGPIPE
    assert (tmp_path / "out").read_text() == ""


HELPERS = Path(__file__).parents[1]
PROGRAM = f"""
import sys, time
sys.path.insert(0, {str(HELPERS)!r})
from helpers import toy
from identilens.studies import registry
registry.STUDIES["toy"] = registry.Entry("helpers.toy:ToyStudy", "Square.", "helpers.toy:ToySettings", takes=())
run = toy.ToyStudy.run
def slow(self, part):
    if part == 2 and "--resume" not in sys.argv:
        print("working", flush=True)
        time.sleep(60)
    return run(self, part)
toy.ToyStudy.run = slow
from identilens.cli.app import main
main()
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_so_and_is_resumed(tmp_path, sent):
    command = [
        sys.executable, "-c", PROGRAM, "toy", "--layers", "1-4", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error: stopped." in errors
    assert "the same command with --resume continues." in errors
    assert "Traceback" not in errors
    assert not list((tmp_path / "run").rglob("*.identilens-tmp"))
    again = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, timeout=120, check=False
    )
    assert again.returncode == 0, again.stderr
    assert pl.read_parquet(tmp_path / "run" / "table.parquet")["number"].to_list() == [1, 2, 3, 4]
    assert not (tmp_path / "run" / "parts").exists()


def test_a_reader_that_leaves_ends_the_command_without_a_word():
    """As `identilens --help | head -0`: the pipe is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        command("--help"), stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=300
    )
    os.close(write)
    assert process.returncode
    assert process.stderr == ""


def test_a_pipe_that_breaks_does_not_kill_the_process():
    """A worker that dies leaves a broken pipe: SIGPIPE's default action would end the whole run."""
    identilens("--version", code=0)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
