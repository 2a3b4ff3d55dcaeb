"""``identilens intervals`` and ``identilens alternatives`` as a person uses them."""

import polars as pl
import pytest

from helpers.command import failing, run

TEXT = (
    "Nobody in the village was surprised, because the old people had said for weeks that the ice in the hills would go "
    "at once, and that the mill would stand in the water."
)


@pytest.fixture(scope="module")
def audited(bundled_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("studies") / "run"
    result = run("audit", "--model", bundled_path, "--text", TEXT, "--out", out)
    assert result.returncode == 0, result.stderr
    return out


def test_one_row_in_a_folder_of_its_own(bundled_path, tmp_path):
    out = tmp_path / "intervals"
    options = ["--model", bundled_path, "--text", TEXT, "--layer", 2, "--head", 5, "--query", "village"]
    result = run("intervals", *options, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "Weights with their intervals" in result.stdout
    table = pl.read_parquet(out / "table.parquet")
    assert set(table["query"]) == {4}
    assert ((table["lo"] <= table["weight"]) & (table["weight"] <= table["hi"])).all()
    assert (out / "report.html").is_file()
    assert "already holds this run, finished" in failing("intervals", *options, "--out", out)
    assert run("intervals", *options, "--out", out, "--resume").returncode == 0
    assert run("figures", out, "--formats", "png").returncode == 0
    assert list((out / "figures").glob("intervals_*.png"))


def test_studies_join_the_audits_report(bundled_path, audited):
    options = ["--model", bundled_path, "--text", TEXT, "--layer", 2, "--head", 5, "--out", audited]
    before = (audited / "table.parquet").read_bytes()
    result = run("alternatives", *options, "--realisable")
    assert result.returncode == 0, result.stderr
    assert "joined to the audit's report" in result.stdout
    assert run("intervals", *options, "--query", "village").returncode == 0
    page = (audited / "report.html").read_text()
    assert 'id="alternatives"' in page
    assert 'id="intervals"' in page
    assert (audited / "table.parquet").read_bytes() == before
    table = pl.read_parquet(next(audited.glob("alternatives-*")) / "table.parquet")
    assert set(table["alternative"]) == {"sampled", "far", "maximum_entropy", "realisable", "parameters"}
    assert table["hidden_change"].max() < 1e-4


def test_bad_input(bundled_path, tmp_path, failing_here):
    model = ["--model", bundled_path]
    assert "layer 0 has heads 0 to 11; got 12" in failing_here(
        "alternatives", *model, "--text", TEXT, "--layer", 0, "--head", 12, "--out", tmp_path / "new"
    )
    assert not (tmp_path / "new").exists()
    assert "no token or position 'zebra'" in failing_here(
        "intervals", *model, "--text", TEXT, "--query", "zebra", "--out", tmp_path / "new"
    )
    assert "give either --text" in failing_here("intervals", *model, "--out", tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("dear")
    assert "holds no run of identilens" in failing_here(
        "intervals", *model, "--text", TEXT, "--layer", 0, "--head", 0, "--out", tmp_path / "full"
    )
    assert (tmp_path / "full" / "thesis.tex").read_text() == "dear"


def test_an_audit_of_another_model_is_left_alone(audited, tmp_path):
    from helpers import zoo

    zoo.build("bert").save_pretrained(tmp_path / "tiny")
    message = failing("intervals", "--model", tmp_path / "tiny", "--text", TEXT, "--out", audited)
    assert "holds an audit of" in message
    assert "Choose another folder, or the model of the audit" in message
