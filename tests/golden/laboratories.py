"""Small runs of what trains or constructs models: Dyck transformers, identifiable encoders, reproductions.

All in single precision. Training is compared after few steps, on one thread. The seconds beside a case are those of
one core.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import polars as pl
import torch

import identilens as idl
from dycks import MEASURING, MINIMAL, QUICK, SETTINGS
from golden.stored import Case, Tables, single
from identilens.dyck.analysis import analyse_dyck
from identilens.dyck.construction_analysis import Construction, check_constructions
from identilens.dyck.pruning_analysis import Pruning, prune_by_width
from identilens.dyck.settings import DyckSetting
from identilens.encoder import IdentifiableEncoderConfig, IdentifiableEncoderModel
from identilens.encoder.rank_lengths import rank_by_length
from identilens.encoder.sweeps import sweep
from identilens.encoder.tokenizer import build_tokenizer
from identilens.encoder.training import TrainingSettings, train
from identilens.reproduce import (
    wen2023,
    wen2023_figure1,
    wen2023_figure2,
    wen2023_figure3,
    wen2023_figure4,
    wen2023_figure7,
    wen2023_table1,
)
from identilens.reproduce.bhardwaj2021_figure2 import rank_figure
from identilens.reproduce.bhardwaj2021_figure5 import figure5
from identilens.reproduce.bhardwaj2021_table1 import table1
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import Run
from made_tasks import write_trec

# Dyck -----------------------------------------------------------------------------------------------------------------


def dyck_tables(found: idl.DyckRuns) -> Tables:
    names = ("table", "curves", "heads", "patterns", "variation")
    return {**{name: getattr(found, name) for name in names}, "means": found.means(), "misleading": found.misleading()}


def dyck() -> Tables:
    return dyck_tables(idl.train_dyck(SETTINGS, [0, 1, 2], at_once=2, measuring=MEASURING))


def dyck_options() -> Tables:
    """Other embeddings, data, losses and regularisers."""
    kinds = {
        "by depth": ({**MINIMAL, "first_layer": "type-depth"}, {"weight_decay": 0.1}),
        "by angle": ({**MINIMAL, "first_layer": "angle"}, {"contrast": 0.3}),
        "prefixes": (SETTINGS[1].config | {"positions": "linear"}, {"data": "prefixes", "loss": "all"}),
    }
    quick = replace(QUICK, tokens=1200, epochs=2)
    settings = [DyckSetting(name, config, replace(quick, **own)) for name, (config, own) in kinds.items()]
    found = idl.train_dyck(settings, [0, 1], measuring=MEASURING)
    return {name: getattr(found, name) for name in ("table", "heads", "variation")}


def dyck_saved() -> Tables:
    with TemporaryDirectory() as folder:
        idl.train_dyck(SETTINGS[:1], [0, 1], measuring=MEASURING, out=folder)
        found = analyse_dyck(sorted(Path(folder).glob("models/*/seed*")), QUICK, measuring=MEASURING)
    return {name: getattr(found, name) for name in ("table", "heads")}


def dyck_construction() -> Tables:
    chosen = Construction(max_depth=3, lengths=(10, 60), count=4, off_balance=(0.0, 0.1, 1.0))
    return {"table": check_constructions(chosen)}


def dyck_pruning() -> Tables:
    return {"table": prune_by_width(Pruning(size=2, width=2, candidates=(3, 8), seeds=2, inputs=200))}


# Identifiable encoders ------------------------------------------------------------------------------------------------

SMALL = TrainingSettings(
    d_k=4, d_model=16, attention_heads=2, feed_forward=24, epochs=2, batch_size=8, learning_rate=0.01, max_length=16
)
WORDS = [f"word{number}" for number in range(200)]


@contextmanager
def task() -> Iterator[tuple[Path, Path]]:
    """A made-up task and a folder to write into."""
    with TemporaryDirectory() as folder:
        yield write_trec(Path(folder) / "trec"), Path(folder)


def encoder() -> Tables:
    with task() as (data, folder):
        found = train("trec", folder / "run", data=data, settings=SMALL)
    metrics = {name: value for name, value in found.metrics.items() if name != "seconds" and value is not None}
    return {"table": found.table, "metrics": pl.DataFrame([metrics])}


def encoder_sweep() -> Tables:
    with task() as (data, folder):
        found = sweep(["trec"], folder / "run", d_k=(1, 3), data=data, settings=replace(SMALL, epochs=1), seeds=(0, 1))
    return {"table": found.table.drop("seconds"), "cells": found.cells(), "table_one": found.table_one()}


def corpus(count: int, length: int) -> list[str]:
    orders = [torch.randperm(200, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]
    return [" ".join(WORDS[index] for index in order[:length].tolist()) for order in orders]


def untrained(heads: str, d_v: int | None, texts: list[str]) -> idl.Lens:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(texts, max_length=160)
    config: Any = IdentifiableEncoderConfig(
        vocab_size=len(tokenizer), heads=heads, d_v=d_v, hidden_size=64, num_attention_heads=2,
        max_position_embeddings=160, d_k=32,
    )  # fmt: skip
    return idl.Lens(IdentifiableEncoderModel(config).eval(), tokenizer)


def rank_lengths() -> Tables:
    texts = corpus(4, 90)
    options: dict[str, Any] = {"lengths": (8, 40, 80), "per_length": 3, "heads": (0, 1)}
    lenses = {"concat": untrained("concat", 16, texts), "add": untrained("add", None, texts)}
    return {name: rank_by_length(lens, texts, **options) for name, lens in lenses.items()}


# Reproductions --------------------------------------------------------------------------------------------------------


def bhardwaj_ranks() -> Tables:
    texts, found = corpus(4, 90), {}
    for figure, heads, d_v in (("2", "concat", 16), ("6", "add", None)):
        made = rank_figure(figure, untrained(heads, d_v, texts), texts, lengths=(8, 80), per_length=3)
        found |= {f"figure{figure}_{name}": table for name, table in made.tables.items()}
    return found


def bhardwaj_figure5() -> Tables:
    texts = corpus(5, 70)
    return dict(figure5(untrained("concat", 32, texts), texts, reviews=2, count=10).tables)


def bhardwaj_table1() -> Tables:
    with task() as (data, folder):
        found = table1(folder / "out", data=data, d_k=(1, 2), settings=replace(SMALL, epochs=1))
    return {"runs": found.tables["runs"].drop("seconds"), "table1": found.tables["table1"]}


def wen(make: Callable[[Path, Run], Reproduction], *shared: str) -> Tables:
    """Return the tables of a reproduction whose study is run with everything but its size."""

    def shrunk(settings: list[DyckSetting], seeds: tuple[int, ...], **options: Any) -> idl.DyckRuns:
        smaller = [replace(one, training=replace(one.training, tokens=700)) for one in settings]
        return idl.train_dyck(smaller, seeds, **{**options, "measuring": MEASURING})

    with TemporaryDirectory() as folder, patch.object(wen2023, "train_dyck", shrunk):
        found = make(Path(folder), Run(2, epochs=1))
    own = set(found.tables) - {"means", "variation", "heads", "misleading"}
    return {name: found.tables[name] for name in sorted(own | set(shared))}


LABORATORIES: dict[str, Case] = {
    "dyck": single(dyck, False),  # 0.8 s
    "dyck_options": single(dyck_options, False),  # 0.6 s
    "dyck_saved": single(dyck_saved, False),  # 0.3 s
    "dyck_construction": single(dyck_construction, False),  # 0.2 s
    "dyck_pruning": single(dyck_pruning, False),  # 0.3 s
    "encoder": single(encoder, False),  # 0.7 s
    "encoder_sweep": single(encoder_sweep, False),  # 3.4 s
    "encoder_rank_lengths": single(rank_lengths, False),  # 0.1 s
    "bhardwaj_ranks": single(bhardwaj_ranks, False),  # 0.1 s
    "bhardwaj_figure5": single(bhardwaj_figure5, False),  # 0.1 s
    "bhardwaj_table1": single(bhardwaj_table1, False),  # 1.6 s
    "wen_figure1": single(lambda: wen(wen2023_figure1.figure1), False),  # 1.0 s
    "wen_figure2": single(lambda: wen(wen2023_figure2.figure2), False),  # 0.8 s
    "wen_figure3": single(lambda: wen(wen2023_figure3.figure3, "misleading"), False),  # 0.8 s
    "wen_figure4": single(lambda: wen(wen2023_figure4.figure4, "misleading"), False),  # 2.8 s
    "wen_figure7": single(lambda: wen(wen2023_figure7.figure7), False),  # 0.7 s
    "wen_figure10": single(lambda: wen(wen2023_figure3.figure10), False),  # 0.6 s
    "wen_table1": single(lambda: wen(wen2023_table1.table1, "variation"), False),  # 2.5 s
}
