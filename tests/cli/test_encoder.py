"""``identilens lab encoder train``, ``sweep`` and the reproductions of Bhardwaj et al. 2021 as a person uses them."""

import polars as pl
import pytest

from helpers.command import identilens
from helpers.made_tasks import write_trec

TRAIN = ("lab", "encoder", "train")
SMALL = (
    "--d-model", 16, "--attention-heads", 2, "--feed-forward", 24, "--batch-size", 8, "--learning-rate", 0.01,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_trec(folder / "trec")
    return folder


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
