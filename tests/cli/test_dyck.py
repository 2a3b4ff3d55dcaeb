"""``identilens dyck`` as a person uses it."""

import re

import polars as pl
import pytest
from typer.testing import CliRunner

import identilens as idl
from helpers.command import failing, run
from identilens.cli.app import app
from identilens.errors import InputError
from identilens.report import save_figures
from identilens.results import DyckRuns

QUICK = (
    "--block", "minimal", "--first-layer", "one-hot", "--layers", 1, "--length", 12, "--tokens", 1200, "--epochs", 2,
    "--lengths", "20-25",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    result = run("dyck", "train", *QUICK, "--seeds", "0-2", "--out", out)
    assert result.returncode == 0, result.stderr
    assert "3 seeds" in " ".join(result.stdout.split())
    return out


def test_training_leaves_tables_models_and_report(folder):
    found = DyckRuns.load(folder)
    assert found.table["seed"].to_list() == [0, 1, 2]
    assert found.settings == ["2 types, depth 4, 1 layer behind one-hot"]
    assert "Attention by seed" in (folder / "report.html").read_text()
    assert len(list(folder.glob("models/*/seed*/model.safetensors"))) == 3
    assert "already holds this run, finished" in failing("dyck", "train", *QUICK, "--seeds", "0-2", "--out", folder)


def invoke(*arguments):
    result = CliRunner().invoke(app, ["dyck", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_saved_models_are_analysed(folder, tmp_path):
    models = sorted(folder.glob("models/*/seed*"))
    options = ("--length", 12, "--lengths", "20-25", "--sequences", 10, "--draws", 1)
    invoke("analyse", *models, *options, "--out", tmp_path / "again")
    assert len(DyckRuns.load(tmp_path / "again").heads) == 3


def test_construct_and_prune(tmp_path):
    small = ("--depth", 2, "--lengths", "10,30", "--count", 2, "--off-balance", 0, "--off-balance", 1)
    invoke("construct", *small, "--out", tmp_path / "built")
    table = pl.read_parquet(tmp_path / "built" / "table.parquet")
    assert table.filter(pl.col("off_balance") == 0)["support"].min() == 1
    assert idl.load(tmp_path / "built" / "model").model.config.max_depth == 2
    report = (tmp_path / "built" / "report.html").read_text()
    assert "every length to 30 at least 100.0 % of the places have exactly the possible next brackets" in report
    options = ("--size", 2, "--width", 2, "--candidates", "3,8", "--seeds", 1)
    invoke("prune", *options, "--out", tmp_path / "pruned")
    assert pl.read_parquet(tmp_path / "pruned" / "table.parquet")["shared"].all()
    assert "In 2 of 2 pairs the prunings for two targets agree" in (tmp_path / "pruned" / "report.html").read_text()
    for name, figure in (("built", "argmax"), ("pruned", "error_by_width")):
        assert figure in {path.stem for path in save_figures(tmp_path / name, formats=("svg",))}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--depth", 0], "depth of at least 1, got 0"),
        (["train", "--open-probability", 1], "strictly between 0 and 1, got 1"),
        (["train", "--length", 7], "an even length for complete words, got 7"),
        (["train", "--seeds", "0-999999"], "seeds at once need about"),
        (["train", "--lengths", "400"], "takes a range such as 400-500; got '400'"),
        (["construct", "--types", 1], "at least 2 types"),
        (["prune", "--candidates", "40"], "at most 24 candidates"),
    ],
)
def test_unusable_options(arguments, expected, tmp_path):
    # In this process: starting one for each takes longer than what it does.
    with pytest.raises(InputError, match=re.escape(expected)):
        CliRunner().invoke(app, ["dyck", *map(str, arguments), "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert not (tmp_path / "out").exists()
