"""The command line as a person uses it: exit codes, messages, files."""

import io
import json
import sys

import polars as pl
import pytest

import identilens as idl
from helpers.command import failing, identilens, run
from helpers.made_tasks import write_trec
from identilens.errors import SettingError
from identilens.models.proof import Check
from identilens.runs.result import Finding
from identilens.studies.certify.result import Certainty
from identilens.studies.mixing.result import Mixing

TEXT = "The ferry left the harbour before dawn, and nobody could say who had paid."
# Options arrive as they were typed; the settings read them.
pytestmark = pytest.mark.usefixtures("unchecked_shapes")
HOSTILE = "A token such as <script>alert(1)</script> is only text."


@pytest.fixture(scope="module")
def folder(bundled_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    identilens(
        "audit", "--model", bundled_path, "--text", TEXT, "--text", HOSTILE, "--out", out, code=0
    )
    return out


def test_an_audit_in_a_process_of_its_own(bundled_path, tmp_path):
    words = ["-m", bundled_path, "-t", TEXT, "-o", tmp_path / "run", "--layers", "0,2-3"]
    words = ["audit", *words, "--examples", 0]
    result = run(*words)
    assert result.returncode == 0, result.stderr
    assert "report.html" in result.stdout
    assert "Traceback" not in result.stderr
    assert set(pl.read_parquet(tmp_path / "run" / "table.parquet")["layer"]) == {0, 2, 3}
    assert not (tmp_path / "run" / "matrices").exists()
    assert "already contains this run, finished" in failing(*words)


def test_audit_writes_table_provenance_matrices_and_report(folder):
    assert len(pl.read_parquet(folder / "table.parquet")) == 2 * 6 * 12
    record = json.loads((folder / "provenance.json").read_text())
    assert record["finished"]
    assert record["model"]["family"] == "bert"
    assert record["texts"]["count"] == 2
    assert record["settings"]["examples"] == 3
    assert (folder / "matrices" / "text0.safetensors").is_file()
    assert "<script>alert(1)</script>" not in (folder / "report.html").read_text()


def test_selfcheck_passes_on_the_bundled_model(bundled_path):
    assert identilens("selfcheck", "--model", bundled_path, code=0).output.count(" yes") == 9


def test_a_failed_check_ends_with_exit_code_1(bundled_path, monkeypatch):
    failed = [Check("rows sum to 1", 0.5, 1e-4, "largest deviation")]
    monkeypatch.setattr("identilens.cli.selfcheck.proof", lambda *_: failed)
    written = identilens("selfcheck", "--model", bundled_path, code=1)
    assert written.output.endswith(" no")
    assert "do not trust its numbers" in written.error


def test_a_list_typed_in_several_options_is_read_whole(bundled_path, tmp_path):
    options = ("--layers", "0", "--layers", "2-3", "--examples", "0", "--certain-rows", "0")
    given = ("--model", bundled_path, "--text", "Nobody came.", *options)
    identilens("audit", *given, "--out", tmp_path / "a", code=0)
    assert idl.load_result(tmp_path / "a").table["layer"].unique().to_list() == [0, 2, 3]


QUICK = ("--layers", "0", "--certain-rows", "0", "--examples", "0")


def test_a_data_set_the_standard_input_and_workers_give_the_same(
    bundled_path, tmp_path, monkeypatch
):
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    texts = [TEXT, "Nobody came.", "Snow fell."]
    rows = "".join(json.dumps({"text": text, "other": "x"}) + "\n" for text in texts)
    (tmp_path / "data" / "train.jsonl").write_text(rows, encoding="utf-8")
    given = ("audit", "--model", bundled_path, *QUICK)
    identilens(
        *given,
        "--file",
        tmp_path / "data" / "train.jsonl",
        "-c",
        "text",
        "--out",
        tmp_path / "file",
        code=0,
    )
    identilens(
        *given, "--dataset", tmp_path / "data", "-c", "text", "--out", tmp_path / "data-set", code=0
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    identilens(
        *given, "--file", "-", "--out", tmp_path / "pipe", code=0
    )  # fmt: skip
    tables = [
        (tmp_path / name / "table.parquet").read_bytes() for name in ("file", "data-set", "pipe")
    ]
    assert tables[0] == tables[1] == tables[2]
    assert len(pl.read_parquet(tmp_path / "pipe" / "table.parquet")) == 3 * 12


SMALL = ("--text", "The ferry left before dawn.", "--layers", 0, "--heads", 0, "--queries", "last")


@pytest.mark.parametrize("option", ["--json", "--quiet", None])
def test_what_is_printed(bundled_path, tmp_path, option, monkeypatch):
    numbers = {"none": None, "infinite": float("inf"), "share": 0.5, "count": 3}
    monkeypatch.setattr(Certainty, "summary", lambda _: Finding("One line.\nAnother.", numbers))
    given = ("certify", "--model", bundled_path, *SMALL, "--out", tmp_path / "run")
    done = identilens(*given, *([option] if option else []), code=0)
    if option == "--json":
        assert json.loads(done.output)["numbers"] == {**numbers, "infinite": None}
        assert json.loads(done.output)["finding"] == "One line.\nAnother."
    elif option == "--quiet":
        assert (done.output, done.error) == ("", "")
    else:
        assert done.output.startswith("One line. Another.")
        assert "report: " in done.output


TREEBANK = """# text = Snow shut it
1\tSnow\tsnow\tNOUN\tNN\t_\t2\tnsubj\t_\t_
2\tshut\tshut\tVERB\tVBD\t_\t0\troot\t_\t_
3\tit\tit\tPRON\tPRP\t_\t2\tobj\t_\t_

# text = Roads closed
1\tRoads\troad\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tclosed\tclose\tVERB\tVBD\t_\t0\troot\t_\t_
"""


def test_a_treebank_brings_texts_and_tags(bundled_path, tmp_path):
    (tmp_path / "small.conllu").write_text(TREEBANK, encoding="utf-8")
    options = ("--file", tmp_path / "small.conllu", "--tags", "upos", "--sketch-probes", 4)
    identilens("mixing", "--model", bundled_path, *options, "--out", tmp_path / "run", code=0)
    tags = Mixing.load(tmp_path / "run").tags
    assert tags.filter(text=1)["tag"].to_list() == ["[CLS]", "NOUN", "VERB", "[SEP]"]
    identilens("export", tmp_path / "run", "--out", tmp_path / "again.html", code=0)
    assert '"tag":"NOUN"' in (tmp_path / "again.html").read_text(encoding="utf-8")
    message = failing(
        "mixing", "--model", bundled_path, *options, "--max-length", 4, "--out", tmp_path / "cut"
    )
    assert "expected --max-length to be left out: tags are of whole texts" in message


def test_the_figures_of_the_draft(tmp_path):
    small = (
        "--length", 5, "--epochs", 1, "--train", 64, "--held-out", 32, "--hidden", 16, "--inputs", 8,
    )  # fmt: skip
    written = identilens(
        "reproduce", "structure2025-figure1", *small, "--out", tmp_path / "one", code=0
    )
    assert "draft: LSTM" in written.output
    assert (tmp_path / "one" / "attention_lstm.png").is_file()
    lstm = (tmp_path / "one" / "lstm").rename(tmp_path / "kept")
    (tmp_path / "two").mkdir()
    lstm.rename(tmp_path / "two" / "lstm")
    again = ("reproduce", "structure2025-figure2", *small, "--out", tmp_path / "two")
    assert "Pass --resume" in failing(*again)
    identilens(*again, "--resume", code=0)
    sweep = pl.read_csv(tmp_path / "two" / "sweep.csv")
    assert len(sweep) == (1 + 4) * 2 * 2 * 51
    best = pl.read_csv(tmp_path / "two" / "best.csv")
    assert best.filter(pl.col("best_head"))["model"].unique().sort().to_list() == [
        "lstm",
        "transformer",
    ]
    record = json.loads((tmp_path / "two" / "provenance.json").read_text())
    assert record["settings"]["length"] == 5
    assert "l = 0.4" in (tmp_path / "two" / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / "two" / "thresholds_lstm.png").is_file()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_trec(folder / "trec")
    return folder


def test_table_one_measured_beside_published(data, tmp_path):
    options = ("--tasks", "trec", "--data", data, "--d-k", "1,2", "--epochs", 1)
    identilens("reproduce", "bhardwaj2021-table1", *options, "--out", tmp_path / "table1", code=0)
    page = (tmp_path / "table1" / "README.md").read_text()
    assert "| trec | Con | published | 0.836 | 0.836 |" in page
    assert "identilens reproduce bhardwaj2021-table1" in page
    assert (tmp_path / "table1" / "accuracy.png").is_file()
    assert pl.read_csv(tmp_path / "table1" / "runs.csv").height == 4
    identilens(
        "reproduce",
        "bhardwaj2021-table1",
        *options,
        "--out",
        tmp_path / "table1",
        "--resume",
        code=0,
    )


LONG = "a" * 100_000


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("--layers", "0-99999999999999999999"), "expected --layers as numbers and ranges"),
        (("words",), "texts are given with --text or --file"),
    ],
)
def test_mistyped_options_are_short_errors(tmp_path, typed, expected):
    given = ("--model", "bundled", "--text", "Snow fell.", "--out", tmp_path / "run")
    message = failing("audit", *given, *typed)
    assert expected in message
    assert len(message) < 600


def test_a_setting_error_is_short_in_python():
    assert len(str(SettingError("layers", "as numbers", LONG))) < 300
