"""``identilens tokens`` as a person uses it: exit codes, messages, files, a run that is interrupted."""

import json
import signal
import subprocess
import time

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from helpers.command import command, failing, identilens
from identilens.studies.tokens.result import TokenIdentifiability

WORDS = [
    "storm",
    "ferry",
    "harbour",
    "pass",
    "snow",
    "keeper",
    "lamp",
    "night",
    "road",
    "bridge",
    "winter",
    "letter",
]
LINES = [f"The {one} and the {other} were closed." for one in WORDS[:6] for other in WORDS[6:9]]
QUICK = ("--folds", 2, "--learning-rates", 0.01, "--max-epochs", 2)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(bundled_path, file, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    choices = ("--probes", "naive,ridge,linear", "--distances", "l2", *QUICK)
    done = identilens(
        "tokens", "--model", bundled_path, "--file", file, *choices, "--out", out, code=0
    )
    assert "Ridge probe, L2:" in done.output
    assert "report.html" in done.output
    return out


def test_a_run_leaves_table_provenance_states_and_report(folder):
    table = pl.read_parquet(folder / "table.parquet")
    assert len(table) == 3 * 2 * 6
    assert table["sentences"].unique().to_list() == [3]
    # Sentences of a kind: even a few of them teach the way back from the first layer.
    assert (
        table.filter((pl.col("layer_tested") == 1) & (pl.col("probe") == "ridge"))["rate"].min()
        > 0.9
    )
    record = json.loads((folder / "provenance.json").read_text())
    assert record["finished"]
    assert record["settings"]["learning_rates"] == [0.01]
    assert len(list((folder / "states").glob("*/states.npy"))) == 1
    assert "Token identifiability" in (folder / "report.html").read_text()
    assert not (folder / "parts").exists()


def test_report_and_figures_from_the_folder(folder, tmp_path):
    identilens("report", folder, "--out", tmp_path / "again.html", code=0)
    identilens("figures", folder, "--out", tmp_path / "figures", "--formats", "svg", code=0)
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"rate_by_layer.svg", "token_rate_by_layer.svg", "train_and_test_l2.svg"}


def test_another_run_needs_overwrite_and_reuses_the_states(folder, bundled_path, file):
    before = [path.stat().st_mtime_ns for path in folder.glob("states/*/states.npy")]
    other = ("--probes", "naive", "--experiment", "neighbours", "--offsets=-1,2", "--folds", 1)
    arguments = ("tokens", "--model", bundled_path, "--file", file, *other, "--out", folder)
    assert "contains another run" in failing(*arguments)
    done = identilens(*arguments, "--overwrite", code=0)
    assert "neighbours recovered, mean over layers" in done.output
    assert pl.read_parquet(folder / "table.parquet")["offset"].unique().to_list() == [-1, 2]
    assert [path.stat().st_mtime_ns for path in folder.glob("states/*/states.npy")] == before


def test_pairs_and_a_second_checkpoint(bundled_path, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    rows = [f"{line}\t{other}" for line, other in zip(LINES, LINES[3:] + LINES[:3], strict=True)]
    pairs.write_text("first\tsecond\n" + "\n".join(rows), encoding="utf-8")
    options = (
        "--experiment",
        "layer-to-layer",
        "--probes",
        "naive",
        "--folds",
        1,
        "--limit",
        8,
        "--layers",
        "1,6",
    )
    columns = (
        "--pairs",
        "--column",
        "first",
        "--column",
        "second",
        "--compare-model",
        bundled_path,
    )
    identilens(
        "tokens", "--model", bundled_path, "--file", pairs, *columns, *options, "--out", tmp_path / "out",
        "--states", tmp_path / "states", code=0,
    )  # fmt: skip
    table = TokenIdentifiability.load(tmp_path / "out").table
    one, other = (
        table.filter(pl.col("checkpoint") == name).drop("checkpoint")
        for name in ("model", "compared")
    )
    assert_frame_equal(one, other)
    assert one["layer_target"].to_list() == [0, 5, 0, 5]
    assert len(list((tmp_path / "states").iterdir())) == 1


def test_a_killed_run_is_resumed(bundled_path, file, tmp_path):
    options = (
        "--probes",
        "naive,mlp",
        "--folds",
        6,
        "--distances",
        "cosine",
        *QUICK[2:],
        "--seed",
        2,
    )
    shared = ("--model", bundled_path, "--file", file, *options, "--states", tmp_path / "states")
    identilens("tokens", *shared, "--out", tmp_path / "whole", code=0)
    cut = tmp_path / "cut"
    process = subprocess.Popen(
        command("tokens", *shared, "--out", cut),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 200
    while (
        len(list(cut.glob("parts/*.safetensors"))) < 8
        and process.poll() is None
        and time.monotonic() < until
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    held = len(list(cut.glob("parts/*.safetensors")))
    assert 8 <= held < 12
    assert "already contains this run, interrupted" in failing("tokens", *shared, "--out", cut)
    identilens("tokens", *shared, "--out", cut, "--resume", code=0)
    assert_frame_equal(
        pl.read_parquet(cut / "table.parquet"),
        pl.read_parquet(tmp_path / "whole" / "table.parquet"),
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--folds", 99], "expected --folds of at most 18, the number of sentences; got 99."),
        (["--experiment", "neighbours", "--offsets", 40], "neighbours at +40, got at most"),
        (
            ["--probes", "ridge", "--distances", "cosine"],
            "expected --distances with l2: the ridge probe",
        ),
        (["--layers", "0,7"], "layers 1 to 6; got [0, 7]"),
        (
            ["--probes", "forest"],
            "expected --probes to be naive or linear or mlp or ridge; got 'forest'",
        ),
        (["--pairs"], "--pairs expects two sentences with a tab between"),
    ],
)
def test_unusable_options(arguments, expected, bundled_path, file, tmp_path):
    assert expected in failing(
        "tokens", "--model", bundled_path, "--file", file, *arguments, "--out", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


def test_an_empty_corpus(bundled_path, tmp_path):
    (tmp_path / "none.txt").write_text("\n\n")
    given = ("--model", bundled_path, "--file", tmp_path / "none.txt")
    message = failing("tokens", *given, "--out", tmp_path / "out")
    assert "contains no texts" in message
