"""``identilens lab encoder train``, ``sweep`` and the reproductions of Bhardwaj et al. 2021 as a person uses them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import identilens as idl
from helpers.command import failing, identilens
from helpers.made_tasks import write_trec

TRAIN = ("lab", "encoder", "train")
SMALL = (
    "--d-model",
    16,
    "--attention-heads",
    2,
    "--feed-forward",
    24,
    "--batch-size",
    8,
    "--learning-rate",
    0.01,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_trec(folder / "trec")
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("train") / "run"
    start = (
        *TRAIN,
        "--task",
        "trec",
        "--data",
        data,
        "--heads",
        "add",
        "--d-k",
        4,
        "--epochs",
        3,
        *SMALL,
    )
    assert (
        "trec, add, d_k = 4, d_v = 16: test accuracy"
        in identilens(*start, "--out", out, code=0).output
    )
    return out


def test_a_run_leaves_a_model_and_metrics(trained):
    metrics = idl.lab.EncoderRun.load(trained).metrics
    assert metrics["test_accuracy"] > 0.9
    assert len(pl.read_parquet(trained / "table.parquet")) == 3
    assert json.loads((trained / "provenance.json").read_text())["finished"]
    assert idl.load(trained / "model").model.config.heads == "add"
    assert "trec, add, d_k = 4, d_v = 16: test accuracy" in (trained / "report.html").read_text()
    identilens("figures", trained, "--formats", "svg", code=0)
    assert {path.stem for path in (trained / "figures").iterdir()} == {"accuracy", "loss"}


def test_the_other_commands_take_the_model(trained, tmp_path):
    texts = ("--text", "How many lamps burn at night ?", "--text", "Where is the harbour ?")
    identilens("audit", "--model", trained / "model", *texts, "--out", tmp_path / "audit", code=0)
    assert pl.read_parquet(tmp_path / "audit" / "table.parquet")["d_v"].unique().to_list() == [16]
    # In a process of its own, where nothing has imported the laboratory.
    command = [sys.executable, "-m", "identilens", "selfcheck", "--model", str(trained / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def on_two_processes(*arguments):
    """The program twice, as torchrun starts it."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    program = shutil.which("identilens", path=Path(sys.executable).parent)
    words = [*start, "--standalone", program, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, env=environment
    )


def test_two_processes_share_every_batch_and_one_reports(data, tmp_path):
    start = (
        *TRAIN,
        "--task",
        "trec",
        "--data",
        data,
        "--heads",
        "add",
        "--d-k",
        4,
        "--epochs",
        3,
        *SMALL,
    )
    result = on_two_processes(*start, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("test accuracy") == 1
    metrics = idl.lab.EncoderRun.load(tmp_path / "run").metrics
    assert (metrics["processes"], metrics["batch_size"]) == (2, 8)
    assert metrics["test_accuracy"] > 0.9
    assert idl.load(tmp_path / "run" / "model").model.config.heads == "add"


def test_processes_that_cannot_share_a_batch_are_refused(data, tmp_path):
    start = (*TRAIN, "--task", "trec", "--data", data, "--epochs", 1, "--batch-size", 7)
    result = on_two_processes(*start, "--out", tmp_path / "run")
    assert "2 processes cannot share batches of 7 evenly" in " ".join(result.stderr.split())
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_run_again(trained, data):
    again = (
        *TRAIN,
        "--task",
        "trec",
        "--data",
        data,
        "--heads",
        "add",
        "--d-k",
        4,
        "--epochs",
        3,
        *SMALL,
    )
    assert "already contains this run, finished" in failing(*again, "--out", trained)
    identilens(*again, "--out", trained, "--resume", code=0)


def test_bad_input(data, tmp_path):
    out = ("--out", tmp_path / "out")
    assert "Choose from" in failing(*TRAIN, "--task", "mnist", "--data", data, *out)
    assert "expected --d-k of at least 1; got 0" in failing(
        *TRAIN, "--task", "trec", "--data", data, "--d-k", 0, *out
    )
    assert "needs one train file of sst" in failing(*TRAIN, "--task", "sst", "--data", data, *out)
    assert "expected --heads to be concat or add; got 'both'" in failing(
        "lab", "encoder", "sweep", "--tasks", "trec", "--data", data, "--heads", "both", *out
    )
    assert "expected --d-k as numbers and ranges" in failing(
        "lab", "encoder", "sweep", "--tasks", "trec", "--data", data, "--d-k", "x", *out
    )
    assert not (tmp_path / "out").exists()


def test_table_one_measured_beside_published(data, tmp_path):
    options = ("--tasks", "trec", "--data", data, "--d-k", "1,2", "--epochs", 1)
    identilens("reproduce", "bhardwaj2021-table1", *options, "--out", tmp_path / "table1", code=0)
    page = (tmp_path / "table1" / "README.md").read_text()
    assert "| trec | Con | published | 0.836 | 0.836 |" in page
    assert "identilens reproduce bhardwaj2021-table1 --tasks trec" in page
    assert (tmp_path / "table1" / "accuracy_trec.png").is_file()
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


def test_figures_want_the_right_encoder(trained, data, tmp_path):
    message = failing("reproduce", "bhardwaj2021-figure2", "--model", trained / "model", "--data", data,
                      "--out", tmp_path)  # fmt: skip
    assert "is not an encoder with heads='concat'" in message
