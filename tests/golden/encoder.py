"""Small training runs of identifiable encoders; all in single precision, on one thread."""

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

import identilens as idl
from golden.stored import Case, single
from helpers.made_tasks import write_trec

SMALL: dict[str, Any] = {
    "d_model": 16, "attention_heads": 2, "feed_forward": 24, "epochs": 2, "batch_size": 8, "learning_rate": 0.01,
    "max_length": 16,
}  # fmt: skip
LATER = ("seconds", "block", "initial_std", "logit_scale")


@contextmanager
def task():
    """A made-up task and a folder to write into."""
    with TemporaryDirectory() as folder:
        yield write_trec(Path(folder) / "trec"), Path(folder)


def encoder():
    with task() as (data, folder):
        found = idl.lab.train(task="trec", out=folder / "run", data=data, d_k=4, **SMALL)
    metrics = {
        name: value
        for name, value in found.metrics.items()
        if name not in LATER and value is not None
    }
    return {"table": found.table, "metrics": pl.DataFrame([metrics])}


CASES: dict[str, Case] = {
    "encoder": single(encoder, False)  # 0.7 s
}
