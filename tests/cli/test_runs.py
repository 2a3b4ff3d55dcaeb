"""Options of every run on the command line: data sets, pipes, clusters, versions."""

import io
import json
import sys

import polars as pl
import pytest

from helpers.command import identilens

TEXT = "The ferry left the harbour before dawn."
QUICK = ("--layers", "0", "--certain-rows", "0", "--examples", "0")
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_a_data_set_the_standard_input_and_workers_give_the_same(
    bundled_path, tmp_path, monkeypatch
):
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    texts = [TEXT, "Nobody came.", "Snow fell."]
    rows = "".join(json.dumps({"text": text, "other": "x"}) + "\n" for text in texts)
    (tmp_path / "data" / "train.jsonl").write_text(rows, encoding="utf-8")
    given = ("audit", "--model", bundled_path, *QUICK)
    identilens(
        *given,
        "--file",
        tmp_path / "data" / "train.jsonl",
        "-c",
        "text",
        "--out",
        tmp_path / "file",
        code=0,
    )
    identilens(
        *given, "--dataset", tmp_path / "data", "-c", "text", "--out", tmp_path / "data-set", code=0
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    identilens(
        *given, "--file", "-", "--out", tmp_path / "pipe", code=0
    )  # fmt: skip
    tables = [
        (tmp_path / name / "table.parquet").read_bytes() for name in ("file", "data-set", "pipe")
    ]
    assert tables[0] == tables[1] == tables[2]
    assert len(pl.read_parquet(tmp_path / "pipe" / "table.parquet")) == 3 * 12
