"""Settings from a file, and runs verified by the request beside their results."""

import json

import polars as pl
import pytest

import identilens as idl
from helpers.command import failing, identilens
from identilens.cli.app import make_app
from identilens.errors import InputError
from identilens.runs.request import write_request
from identilens.studies.registry import STUDIES, study_named

TEXT = "The ferry left the harbour before dawn."
HOSTILE = 'Quotes "so", \\ and \x7f\t]\n[x]'
QUICK = {"layers": (0,), "certain_rows": 0, "examples": 0}
TYPED = ("--layers", "0", "--certain-rows", "0", "--examples", "0")
NEEDED = {
    "structure": {"length": 8}, "lab encoder train": {"task": "trec"},
    "lab encoder sweep": {"tasks": ("trec", "sst"), "d_k": (1, 4)},
    "audit": {"matrices": True, "layers": (2, 0)},
    "tokens": {"offsets": (-2, 1), "shares": (0.5, 1.0), "probes": ("mlp",)}, "mixing": {"layers": (1, 2)},
    "certify": {"layers": (1,), "heads": (2, 3), "kind": "encoder", "queries": (7, "a, b")},
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.mark.parametrize("name", STUDIES)
def test_the_file_beside_a_run_gives_back_every_setting(name, tmp_path):
    study, takes = study_named(name), STUDIES[name].takes
    settings = study.settings_type.of(None, NEEDED.get(name, {}))
    option = {"texts": "text", "chats": "prompt"}.get(takes[-1]) if takes else None
    inputs = {"model": "bundled", option: [HOSTILE, TEXT]} if takes else {}
    options = {**inputs, **settings.values_of(study.settings_type)}
    write_request(tmp_path, name, {key: _written(value) for key, value in options.items()})
    words = [*name.split(), "--config", str(tmp_path / "run.toml"), "--out", "new"]
    given = parsed(*words)
    assert given.get("settings") == (settings if "settings" in given or name in NEEDED else None)
    if takes:
        assert getattr(given[takes[-1]], option) == (HOSTILE, TEXT)


def parsed(*words):
    """The groups of options that a command is called with."""
    _, bound, _ = make_app().parse_args(
        list(map(str, words)), exit_on_error=False, print_error=False
    )
    return bound.arguments


def _written(value):
    return (
        [str(one) if hasattr(one, "parts") else one for one in value]
        if isinstance(value, tuple)
        else value
    )


def test_what_is_typed_goes_before_the_file(tmp_path):
    (tmp_path / "all.toml").write_text(
        'model = "some"\nlayers = [1]\nfile = "no-such.txt"\nout = "there"\n'
        '[audit]\nlayers = "3-4"\ncertain_rows = 0\nmatrices = true\n[lab.dyck.train]\nseeds = [1]\n'
    )
    (tmp_path / "dyck.toml").write_text('[lab.dyck.train]\nseeds = "4,6-7"')
    given = ("audit", "--config", tmp_path / "all.toml", "--text", TEXT)
    of_file, typed = (
        parsed(*given),
        parsed(*given, "--layers", "5", "--model", "other", "--out", "here"),
    )
    assert (of_file["settings"].layers, typed["settings"].layers) == ((3, 4), (5,))
    assert (of_file["lens"].model, typed["lens"].model) == ("some", "other")
    assert (str(of_file["run"].out), str(typed["run"].out)) == ("there", "here")
    assert of_file["settings"].matrices
    assert of_file["texts"].file is None
    assert parsed("lab", "dyck", "train", "--config", tmp_path / "dyck.toml", "--out", "x")[
        "settings"
    ].seeds == (4, 6, 7)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "layers = 1.5",
            "expected --layers as numbers and ranges such as 0,3,5-8; got '1.5'.",
        ),
        ('[audit]\nbatch_size = "x"', "bad.toml: unable to convert"),
        ('effects = "often"', "bad.toml. Choose from: "),
        ("folds = 3", 'Unknown option: "[folds]" from'),
        ('[certify]\nmodel = "x"', "bad.toml has no options of audit: those under a command's"),
        ("[audit.layers]\nfirst = 1", 'Unknown option: "[layers][first]" from'),
        ("layers = ", "bad.toml is not valid TOML"),
        ("layers = " + "[" * 5000, "bad.toml is not valid TOML"),
        ("layers = " + "[" * 60 + "]" * 60, "expected --layers"),
        (None, "bad.toml cannot be read: No such file or directory"),
    ],
)
def test_unusable_files(bundled_path, tmp_path, content, expected):
    if content is not None:
        (tmp_path / "bad.toml").write_text(content)
    typed = () if content and content.startswith("text") else ("--text", TEXT)
    given = ("--model", bundled_path, *typed, "--out", tmp_path / "out")
    assert expected in failing("audit", "--config", tmp_path / "bad.toml", *given)
    assert not (tmp_path / "out").exists()


def test_a_run_is_verified(bundled_path, tmp_path):
    typed = ("--model", bundled_path, "--text", TEXT, *TYPED, "--out", tmp_path / "run")
    identilens("audit", *typed, code=0)
    before = sorted((tmp_path / "run").iterdir())
    assert "identical, every column" in identilens("verify", tmp_path / "run", code=0).output
    assert sorted((tmp_path / "run").iterdir()) == before
    file = tmp_path / "run" / "table.parquet"
    table = pl.read_parquet(file)
    table.with_columns(pl.col("output_share") * (1 + 1e-12)).write_parquet(file)
    assert "identical, every column" in identilens("verify", tmp_path / "run", code=0).output
    table.with_columns(pl.col("output_share") + 0.5, kind=pl.lit("decoder")).write_parquet(file)
    assert (
        "differs from what its settings (run.toml) give"
        in identilens("verify", tmp_path / "run", code=1).error
    )
    found = idl.verify(tmp_path / "run")
    assert found["column"].to_list() == ["kind", "output_share"]
    assert found["differ"].to_list() == [len(table)] * 2
    assert found["largest"].to_list() == [None, pytest.approx(0.5)]
    lost = pl.when(pl.int_range(pl.len()) > 0).then("output_share")
    table.with_columns(output_share=lost).write_parquet(file)
    assert idl.verify(tmp_path / "run")["differ"].to_list() == [1], "a number is missing"
    table.head(3).write_parquet(file)
    found = idl.verify(tmp_path / "run").row(0, named=True)
    assert (found["column"], found["differ"]) == ("(rows)", len(table) - 3)
    assert "already" not in failing("verify", tmp_path / "none")


@pytest.mark.filterwarnings("default:not known to be the run")
def test_a_run_is_verified_with_a_file_that_lies_elsewhere(bundled_path, tmp_path):
    file, run = tmp_path / "texts.txt", tmp_path / "run"
    file.write_text(TEXT)
    identilens("audit", "--model", bundled_path, "--file", file, *TYPED, "--out", run, code=0)
    moved = file.rename(tmp_path / "moved.txt")
    assert "Check its path" in " ".join(failing("verify", run).split())
    request = (run / "run.toml").read_text()
    (run / "run.toml").write_text(request.replace(str(file), str(moved)))
    assert "identical, every" in identilens("verify", run, code=0).output
    moved.write_text("Another text.")
    assert "digest 0 of texts" in identilens("verify", run, code=1).error


def test_a_run_names_the_file_of_its_conversations(tmp_path):
    file, run = tmp_path / "chat.json", tmp_path / "run"
    chat = {"prompt": "Schnee 😀 fell on\nthe", "answer": " ice", "segments": {"what": "Schnee"}}
    file.write_text(json.dumps(chat))
    words = ("answer", "--model", "bundled-decoder", "--segment", "place=on", "--bounded", 0)
    identilens(*words, "--chat", file, "--out", run, code=0)
    assert "identical, every" in identilens("verify", run, code=0).output
    identilens("answer", "--config", run / "run.toml", "--out", tmp_path / "again", code=0)
    identilens(*words, "--chat", json.dumps(chat), "--out", run, "--resume", code=0)
    file.write_text(json.dumps({**chat, "prompt": "Snow fell on the"}))
    assert "conversation 0, seg" in " ".join(failing("verify", run).split())


def test_only_what_is_typed_lets_code_of_a_checkpoint_run(bundled, tmp_path, monkeypatch):
    idl.audit(idl.load("bundled"), [TEXT], out=tmp_path / "run", **QUICK)
    request = tmp_path / "run" / "run.toml"
    request.write_text(request.read_text().replace("code = false", "code = true"))
    loaded = []
    monkeypatch.setattr(
        "identilens.cli.options.load", lambda *_, **options: loaded.append(options) or bundled
    )
    assert "ran code of its checkpoint. Pass --trust-remote-code if you trust" in failing(
        "verify", tmp_path / "run"
    )
    with pytest.raises(InputError, match="trust_remote_code=True"):
        idl.verify(tmp_path / "run")
    typed = ("--config", request, "--out", tmp_path / "new")
    assert "run.toml: a file does not let code of a checkpoint run. Type --trust" in failing(
        "audit", *typed
    )
    assert loaded == []
    identilens("verify", tmp_path / "run", "--trust-remote-code", code=0)
    idl.verify(tmp_path / "run", trust_remote_code=True)
    identilens("audit", *typed, "--trust-remote-code", code=0)
    assert [one["trust_remote_code"] for one in loaded] == [True] * 3
