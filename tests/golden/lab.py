"""Small runs of the laboratories and of a reproduction.

All in single precision, on one thread; training is compared after few steps.
"""

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import polars as pl

import identilens as idl
from golden.stored import AFTER_TRAINING, Case, single
from helpers.dycks import MEASURING, SETTINGS, shrunk
from helpers.made_tasks import write_trec
from identilens.reproduce import wen2023
from identilens.reproduce.options import WenSettings
from identilens.reproduce.registry import figure_named


def dyck_tables(found):
    names = ("table", "curves", "heads", "patterns", "variation")
    return {
        **{name: getattr(found, name) for name in names},
        "means": found.means(),
        "misleading": found.misleading(),
    }


def dyck():
    return dyck_tables(idl.lab.train_dyck(SETTINGS, seeds=[0, 1, 2], at_once=2, **MEASURING))


def dyck_construction():
    return {
        "table": idl.lab.construct_dyck(
            depth=3, lengths=(10, 60), count=4, off_balance=(0.0, 0.1, 1.0)
        )
    }


SMALL: dict[str, Any] = {
    "d_model": 16, "attention_heads": 2, "feed_forward": 24, "epochs": 2, "batch_size": 8, "learning_rate": 0.01,
    "max_length": 16,
}  # fmt: skip
LATER = ("seconds", "initial_std")


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


def wen(name, *shared):
    """Return the tables of a reproduction whose study is run with everything but its size."""
    with TemporaryDirectory() as folder, patch.object(wen2023, "train_dyck", shrunk):
        found = figure_named(f"wen2023-{name}")(WenSettings(seeds=2, epochs=1), Path(folder))
    own = set(found.tables) - {"means", "variation", "heads", "misleading"}
    return {name: found.tables[name] for name in sorted(own | set(shared))}


CASES: dict[str, Case] = {
    "dyck": single(dyck, False, AFTER_TRAINING),  # 0.8 s
    "dyck_construction": single(dyck_construction, False),  # 0.2 s
    "encoder": single(encoder, False),  # 0.7 s
    "wen_table1": single(lambda: wen("table1", "variation"), False, AFTER_TRAINING),  # 2.5 s
}
