"""``identilens structure`` and the reproductions of structure2025 as a person runs them."""

import json

import polars as pl
import pytest

from identilens.results import Structure

SENTENCES = [
    f"The {animal} slept under the {place} until the rain had stopped and the road was dry again."
    for animal in ("fox", "dog", "cat") for place in ("bridge", "table", "old tree")
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*SENTENCES, "Too short."]), encoding="utf-8")
    return file


def test_the_run_its_report_and_its_resumption(bundled_path, corpus, tmp_path, here):
    out = tmp_path / "run"
    start = ("structure", "--model", bundled_path, "--file", corpus, "--length", 12, "--out", out)
    options = ("--shorter", "skip", "--limit", 10, "--perturbed", 0, "--pairs", 1, "--clusters", 2)
    written = here(*start, *options, "--threshold", "0.1")
    printed = " ".join(written.out.split())
    assert "9 texts of 12 tokens: R is the whole space in 72 of 72 heads, after 1 text at the latest" in printed
    assert "report.html" in printed
    assert "18/18" in written.err
    found = Structure.load(out)
    assert found.provenance["settings"]["threshold"] == 0.1
    assert found.table["representatives"][0] == 2
    before = (out / "table.parquet").read_bytes()
    here(*start, *options, "--threshold", "0.1", "--resume")
    assert (out / "table.parquet").read_bytes() == before
    error = " ".join(here(*start, *options, "--threshold", "0.2", code=2).err.split())
    assert "holds another run" in error
    here("figures", out, "--formats", "png")
    assert (out / "figures" / "structures_encoder_raw.png").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "1 of 10 texts have fewer than 12 tokens; text 9 has 5. Lower length (--length)"),
        (("--shorter", "skip", "--threshold", "1.5"), "lies in [0, 1]; got 1.5"),
        (("--shorter", "skip", "--limit", "1"), "expected at least 2 texts of 12 tokens, got 1"),
        (("--shorter", "skip", "--penalty", "1"), "penalty must be a share in [0, 1)"),
        (("--shorter", "skip", "--clusters", "99"), "at most 9 clusters"),
    ],
)
def test_bad_input_says_what_to_do(bundled_path, corpus, tmp_path, here, options, message):
    out = tmp_path / "run"
    start = ("structure", "--model", bundled_path, "--file", corpus, "--length", 12, "--out", out)
    written = here(*start, *options, code=2)
    assert message in " ".join(written.err.split())
    assert not out.exists()


def test_the_figures_of_the_draft(tmp_path, here):
    small = ("--length", 5, "--epochs", 1, "--train", 64, "--held-out", 32, "--hidden", 16, "--inputs", 8)
    written = here("reproduce", "structure2025-figure1", *small, "--out", tmp_path / "one")
    assert "draft: LSTM" in written.out
    assert (tmp_path / "one" / "attention.png").is_file()
    assert len(pl.read_csv(tmp_path / "one" / "attention.csv")) == 2 * 25
    here("reproduce", "structure2025-figure2", *small, "--out", tmp_path / "two")
    sweep = pl.read_csv(tmp_path / "two" / "sweep.csv")
    assert len(sweep) == (1 + 4) * 2 * 2 * 51
    best = pl.read_csv(tmp_path / "two" / "best.csv")
    assert best.filter(pl.col("best_head"))["model"].unique().sort().to_list() == ["lstm", "transformer"]
    record = json.loads((tmp_path / "two" / "provenance.json").read_text())
    assert record["settings"]["length"] == 5
    assert "l = 0.4" in (tmp_path / "two" / "README.md").read_text(encoding="utf-8")
