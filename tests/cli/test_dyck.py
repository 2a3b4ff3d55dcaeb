"""``identilens lab dyck`` as a person uses it."""

import pytest

import identilens as idl
from helpers.command import failing, identilens

QUICK = (
    "--block", "minimal", "--first-layer", "one-hot", "--layers", 1, "--length", 12, "--tokens", 1200, "--epochs", 2,
    "--lengths", "20-25",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    assert (
        "3 seeds"
        in identilens("lab", "dyck", "train", *QUICK, "--seeds", "0-2", "--out", out, code=0).output
    )
    return out


def test_training_leaves_tables_models_and_report(folder):
    found = idl.lab.DyckRuns.load(folder)
    assert found.table["seed"].to_list() == [0, 1, 2]
    assert found.settings == ["2 types, depth 4, 1 layer behind one-hot"]
    assert "Attention by seed" in (folder / "report.html").read_text()
    assert len(list(folder.glob("models/*/seed*/model.safetensors"))) == 3
    assert "already contains this run, finished" in failing(
        "lab", "dyck", "train", *QUICK, "--seeds", "0-2", "--out", folder
    )


def test_saved_models_are_analysed(folder, tmp_path):
    models = sorted(folder.glob("models/*/seed*"))
    options = ("--length", 12, "--lengths", "20-25", "--head-sequences", 10, "--draws", 1)
    identilens(
        "lab", "dyck", "analyse", "--models", *models, *options, "--out", tmp_path / "again", code=0
    )
    assert len(idl.load_result(tmp_path / "again").heads) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--depth", 0], "expected --depth of at least 1; got 0"),
        (["train", "--open-probability", 1], "expected --open-probability below 1; got 1.0"),
        (["train", "--length", 7], "an even length for complete words, got 7"),
        (["train", "--seeds", "0-99999"], "seeds at once need about"),
        (
            ["train", "--lengths", "400"],
            "expected --lengths as two ends such as 400-500; got '400'",
        ),
    ],
)
def test_unusable_options(arguments, expected, tmp_path):
    assert expected in failing("lab", "dyck", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
