"""``identilens lab encoder train``, ``sweep`` and the reproductions of Bhardwaj et al. 2021 as a person uses them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import identilens as idl
from helpers.command import identilens
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


def test_table_one_measured_beside_published(data, tmp_path):
    options = ("--tasks", "trec", "--data", data, "--d-k", "1,2", "--epochs", 1)
    identilens("reproduce", "bhardwaj2021-table1", *options, "--out", tmp_path / "table1", code=0)
    page = (tmp_path / "table1" / "README.md").read_text()
    assert "| trec | Con | published | 0.836 | 0.836 |" in page
    assert "identilens reproduce bhardwaj2021-table1 --tasks trec" in page
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
