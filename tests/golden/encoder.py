"""Small training runs of identifiable encoders; all in single precision, on one thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import torch

import identilens as idl
from golden.stored import Case, Tables, single
from helpers.made_tasks import write_trec
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.modeling import IdentifiableEncoderModel
from identilens.lab.encoder.rank_lengths import rank_by_length
from identilens.lab.encoder.training import build_tokenizer

SMALL: dict[str, Any] = {
    "d_model": 16, "attention_heads": 2, "feed_forward": 24, "epochs": 2, "batch_size": 8, "learning_rate": 0.01,
    "max_length": 16,
}  # fmt: skip
LATER = ("seconds", "block", "initial_std", "logit_scale")
WORDS = [f"word{number}" for number in range(200)]


@contextmanager
def task() -> Iterator[tuple[Path, Path]]:
    """A made-up task and a folder to write into."""
    with TemporaryDirectory() as folder:
        yield write_trec(Path(folder) / "trec"), Path(folder)


def encoder() -> Tables:
    with task() as (data, folder):
        found = idl.lab.train(task="trec", out=folder / "run", data=data, d_k=4, **SMALL)
    metrics = {
        name: value
        for name, value in found.metrics.items()
        if name not in LATER and value is not None
    }
    return {"table": found.table, "metrics": pl.DataFrame([metrics])}


def encoder_sweep() -> Tables:
    with task() as (data, folder):
        found = idl.lab.sweep(
            tasks="trec",
            out=folder / "run",
            d_k=3,
            data=data,
            seeds=(0, 1),
            **{**SMALL, "epochs": 1},
        )
    return {
        "table": found.table.drop("seconds"),
        "cells": found.cells(),
        "table_one": found.table_one(),
    }


def corpus(count: int, length: int) -> list[str]:
    orders = [
        torch.randperm(200, generator=torch.Generator().manual_seed(seed)) for seed in range(count)
    ]
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


CASES: dict[str, Case] = {
    "encoder": single(encoder, False)  # 0.7 s
}
