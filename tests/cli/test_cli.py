"""The command line as a person uses it: exit codes, messages, files."""

import json
from types import SimpleNamespace

import polars as pl
import pytest

import identilens as idl
from helpers.command import failing, identilens, run
from identilens.models.proof import Check

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


def test_report_and_figures_from_the_folder(folder, tmp_path):
    assert (
        str(tmp_path / "again.html")
        in identilens("export", folder, "--out", tmp_path / "again.html", code=0).output
    )
    assert (tmp_path / "again.html").stat().st_size > 100_000
    identilens(
        "export",
        folder,
        "--to",
        "figures",
        "--out",
        tmp_path / "figures",
        "--formats",
        "svg",
        code=0,
    )
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert "correlation_by_length.svg" in drawn
    figures = ("export", folder, "--to", "figures", "--out", tmp_path / "none")
    assert "any of png, svg, pdf" in failing(*figures, "--formats", "gif")
    assert not (tmp_path / "none").exists()


def test_selfcheck_passes_on_the_bundled_model(bundled_path):
    assert identilens("selfcheck", "--model", bundled_path, code=0).output.count("passed") == 9


def test_a_failed_check_ends_with_exit_code_1(bundled_path, monkeypatch):
    failed = [Check("rows sum to 1", 0.5, 1e-4, "largest deviation")]
    monkeypatch.setattr("identilens.cli.selfcheck.proof", lambda *_: failed)
    written = identilens("selfcheck", "--model", bundled_path, code=1)
    assert "failed" in written.output
    assert "do not trust its numbers" in written.error


@pytest.mark.parametrize(("words", "heads"), [((), 72), (("--decoder",), 32)])
def test_the_demo_audits_a_bundled_model(monkeypatch, tmp_path, words, heads):
    short = SimpleNamespace(
        joinpath=lambda _: SimpleNamespace(read_text=lambda **_: f"{TEXT}\n\nNobody came.\n")
    )
    monkeypatch.setattr("identilens.demo.examples.files", lambda _: short)
    written = identilens("demo", *words, "--out", tmp_path / "demo", code=0)
    assert f"{2 * heads} attention maps" in " ".join(written.output.split())
    assert (tmp_path / "demo" / "report.html").is_file()


def test_a_list_typed_in_several_options_is_read_whole(bundled_path, tmp_path):
    options = ("--layers", "0", "--layers", "2-3", "--examples", "0", "--certain-rows", "0")
    given = ("--model", bundled_path, "--text", "Nobody came.", *options)
    identilens("audit", *given, "--out", tmp_path / "a", code=0)
    assert idl.load_result(tmp_path / "a").table["layer"].unique().to_list() == [0, 2, 3]
