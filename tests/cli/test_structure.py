"""``identilens structure`` and the reproductions of structure2025 as a person runs them."""

import json

import polars as pl

from helpers.command import failing, identilens


def test_the_figures_of_the_draft(tmp_path):
    small = (
        "--length", 5, "--epochs", 1, "--train", 64, "--held-out", 32, "--hidden", 16, "--inputs", 8,
    )  # fmt: skip
    written = identilens(
        "reproduce", "structure2025-figure1", *small, "--out", tmp_path / "one", code=0
    )
    assert "draft: LSTM" in written.output
    assert (tmp_path / "one" / "attention.png").is_file()
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
    assert (tmp_path / "two" / "thresholds.png").is_file()
    assert record["settings"]["learning_rate of the transformer"] == 1e-3
