"""Reproductions in small."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import identilens as idl
from golden.encoder import SMALL, corpus, task, untrained
from golden.stored import AFTER_TRAINING, Case, Tables, single
from helpers.dycks import MEASURING
from identilens.lab.dyck.settings import DyckSetting
from identilens.reproduce import wen2023
from identilens.reproduce.bhardwaj2021 import Table1Settings, figure5, rank_figure, table1
from identilens.reproduce.registry import figure_named
from identilens.reproduce.wen2023 import WenSettings
from identilens.reproduce.wen2023_corollary2 import Corollary2Settings, corollary2


def bhardwaj_ranks() -> Tables:
    texts, found = corpus(4, 90), {}
    for figure, heads, d_v in (("2", "concat", 16), ("6", "add", None)):
        made = rank_figure(untrained(heads, d_v, texts), texts, "", lengths=(8, 80), per_length=3)
        found |= {f"figure{figure}_{name}": table for name, table in made.tables.items()}
    return found


def bhardwaj_figure5() -> Tables:
    texts = corpus(5, 70)
    return dict(figure5(untrained("concat", 32, texts), texts, reviews=2, count=10).tables)


def bhardwaj_table1() -> Tables:
    with task() as (data, folder):
        found = table1(
            Table1Settings(data=data, d_k=(1,), **{**SMALL, "epochs": 1}), folder / "out"
        )
    return {"runs": found.tables["runs"].drop("seconds"), "table1": found.tables["table1"]}


def wen(name: str, *shared: str) -> Tables:
    """Return the tables of a reproduction whose study is run with everything but its size."""

    def shrunk(settings: list[DyckSetting], **options: Any) -> idl.lab.DyckRuns:
        smaller = [replace(one, training=replace(one.training, tokens=700)) for one in settings]
        return idl.lab.train_dyck(smaller, **{**options, **MEASURING})

    with TemporaryDirectory() as folder, patch.object(wen2023, "train_dyck", shrunk):
        found = figure_named(f"wen2023-{name}").make(WenSettings(seeds=2, epochs=1), Path(folder))
    own = set(found.tables) - {"means", "variation", "heads", "misleading"}
    return {name: found.tables[name] for name in sorted(own | set(shared))}


def wen_corollary2() -> Tables:
    small = Corollary2Settings(
        lengths=(4, 6), strengths=(1e-2, 1e-3), hidden=10, seeds=2, iterations=12
    )
    return dict(corollary2(small).tables)


CASES: dict[str, Case] = {
    "wen_table1": single(lambda: wen("table1", "variation"), False, AFTER_TRAINING)  # 2.5 s
}
