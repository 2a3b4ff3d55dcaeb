"""The command line as a person uses it: exit codes, messages, files."""

import json
import lzma
from pathlib import Path

import polars as pl
import pytest

from helpers.command import failing, run

TEXT = "The ferry left the harbour before dawn, and nobody could say who had paid."


@pytest.fixture(scope="module")
def folder(bundled_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    hostile = "A token such as <script>alert(1)</script> is only text."
    result = run("audit", "--model", bundled_path, "--text", TEXT, "--text", hostile, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "attention maps" in result.stdout
    assert "report.html" in result.stdout
    return out


def test_audit_writes_table_provenance_matrices_and_report(folder):
    table = pl.read_parquet(folder / "table.parquet")
    assert len(table) == 2 * 6 * 12
    record = json.loads((folder / "provenance.json").read_text())
    assert record["finished"]
    assert record["model"]["family"] == "bert"
    assert record["texts"]["count"] == 2
    assert (folder / "matrices" / "text0.safetensors").is_file()
    page = (folder / "report.html").read_text()
    assert "<script>alert(1)</script>" not in page


def test_report_and_figures_from_the_folder(folder, tmp_path):
    result = run("report", folder, "--out", tmp_path / "again.html")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "again.html").stat().st_size > 100_000
    result = run("figures", folder, "--out", tmp_path / "figures", "--formats", "svg")
    assert result.returncode == 0, result.stderr
    drawn = sorted(path.suffix for path in (tmp_path / "figures").iterdir())
    assert len(drawn) >= 4
    assert set(drawn) == {".svg"}


def test_selfcheck_passes_on_the_bundled_model(bundled_path):
    result = run("selfcheck", "--model", bundled_path)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("passed") == 7


def test_folder_of_another_run_is_left_alone(folder, bundled_path):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    message = failing("audit", "--model", bundled_path, "--text", "Other words.", "--out", folder)
    assert "holds another run" in message
    assert "--overwrite" in message
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_with_other_files_is_left_alone(tmp_path, bundled_path):
    (tmp_path / "thesis.tex").write_text("precious")
    message = failing("audit", "--model", bundled_path, "--text", TEXT, "--out", tmp_path, "--overwrite")
    assert "holds no run of identilens" in message
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_no_such_model(tmp_path):
    message = failing("audit", "--model", tmp_path / "none", "--text", TEXT, "--out", tmp_path / "out")
    assert "expected a hub id or a folder with a config.json" in message
    assert not (tmp_path / "out").exists()


def test_refused_family(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "xlnet", "architectures": ["XLNetModel"]}')
    message = failing("audit", "--model", tmp_path, "--text", TEXT, "--out", tmp_path / "out")
    assert "xlnet does its own attention" in message
    assert "tested families: albert" in message


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("latin.txt", "caf\xe9".encode("latin-1"), [], "is not utf-8: byte 0xe9 at position 3"),
        ("texts.jsonl", b'{"text": "fine"}\n', ["--column", "body"], "line 1: no column 'body'; there are text"),
        ("texts.jsonl", b'{"text": "fine"}\nnot json\n', ["--column", "text"], "line 2: not valid JSON"),
        ("texts.csv", b"id,text\n1,fine\n2,\n", ["--column", "text"], "line 3: column 'text' is empty"),
        ("texts.csv", b"id,text\n1,fine\n", [], "needs --column NAME"),
        ("texts.parquet", b"", [], "expected .txt, .jsonl, .csv, .tsv"),
        ("texts.txt", b"\n\n", [], "holds no texts"),
        ("texts.txt", b"fine\n", ["--column", "text"], "has one text a line"),
        ("texts.txt.xz", b"not compressed", [], "cannot be read"),
    ],
)
def test_unusable_files(tmp_path, bundled_path, failing_here, name, content, options, expected):
    (tmp_path / name).write_bytes(content)
    given = ("--file", tmp_path / name, *options)
    message = failing_here("audit", "--model", bundled_path, *given, "--out", tmp_path / "out")
    assert expected in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--text", ""], "text 0 is empty"),
        (["--text", "word " * 700], "--max-length 512"),
        ([], "either --text"),
        (["--text", TEXT, "--layers", "two"], "numbers and ranges such as 0,3,5-8; got 'two'"),
        (["--text", TEXT, "--layers", "4-9"], "the model has layers 0 to 5"),
        (["--text", TEXT, "--device", "cuda:7"], "cannot use device 'cuda:7'"),
        (["--text", TEXT, "--stream", "sometimes"], "sometimes"),
    ],
)
def test_unusable_options(tmp_path, bundled_path, failing_here, arguments, expected):
    message = failing_here("audit", "--model", bundled_path, *arguments, "--out", tmp_path / "out")
    assert expected in message.replace("│ ", "")
    assert not (tmp_path / "out").exists()


def test_report_of_a_folder_without_a_run(tmp_path):
    assert "holds no result" in failing("report", tmp_path)


def test_read_texts_of_every_kind(tmp_path):
    from identilens.cli.texts import read_texts

    rows = [("one", "eins"), ("two, too", "zwei")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"en": en, "de": de}) + "\n" for en, de in rows))
    (tmp_path / "a.csv").write_text('en,de\none,eins\n"two, too",zwei\n')
    (tmp_path / "a.tsv").write_text("en\tde\none\teins\ntwo, too\tzwei\n")
    with lzma.open(tmp_path / "b.tsv.xz", "wt") as file:
        file.write((tmp_path / "a.tsv").read_text())
    for name in ("a.jsonl", "a.csv", "a.tsv", "b.tsv.xz"):
        assert read_texts([], tmp_path / name, ["en", "de"]) == rows
        assert read_texts([], tmp_path / name, ["de"]) == ["eins", "zwei"]
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert read_texts([], tmp_path / "a.txt", []) == ["one", "two"]
    (tmp_path / "l.txt").write_bytes("café\n".encode("latin-1"))
    assert read_texts([], tmp_path / "l.txt", [], encoding="latin-1") == ["café"]


def test_demo_sample_has_texts_longer_than_32_and_64_tokens(bundled):
    texts = (
        Path(__import__("identilens.demo", fromlist=["demo"]).__file__).with_name("texts.txt").read_text().splitlines()
    )
    lengths = [item.length for item in bundled.read([text for text in texts if text])]
    assert sum(length > 64 for length in lengths) >= 3
    assert sum(32 < length <= 64 for length in lengths) >= 2
    assert sum(length <= 32 for length in lengths) >= 2
