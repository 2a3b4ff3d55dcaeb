"""Figures 2, 5 and 6 of Bhardwaj et al. 2021 on small encoders, and what a reproduction writes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import identilens as idl
from helpers.heads import seeded
from identilens.errors import InputError
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.modeling import IdentifiableEncoderModel
from identilens.lab.encoder.settings import D_K
from identilens.lab.encoder.sweep.study import published_accuracies, published_accuracy
from identilens.lab.encoder.tasks import TASKS
from identilens.lab.encoder.training import build_tokenizer
from identilens.reproduce import bhardwaj2021
from identilens.reproduce.options import Figure5Settings

WORDS = [f"word{number}" for number in range(300)]


def texts(count, length):
    orders = [torch.randperm(300, generator=seeded(seed)) for seed in range(count)]
    return [" ".join(WORDS[index] for index in own[:length].tolist()) for own in orders]


def lens(heads, d_v, corpus, **sizes):
    torch.manual_seed(0)
    tokenizer = build_tokenizer(corpus, max_length=160)
    config = IdentifiableEncoderConfig(
        vocab_size=len(tokenizer), heads=heads, d_v=d_v, hidden_size=64, num_attention_heads=2,
        max_position_embeddings=160, **sizes,
    )  # fmt: skip
    return idl.Lens(IdentifiableEncoderModel(config).eval(), tokenizer)


def test_logit_ranks_of_reviews(monkeypatch):
    corpus = texts(5, 70)
    model = lens("concat", 32, corpus, d_k=32)
    monkeypatch.setattr(bhardwaj2021, "load", lambda _: model)
    monkeypatch.setattr(bhardwaj2021, "reviews", lambda _: corpus)
    settings = Figure5Settings(model=Path("model"), reviews=2, count=20)
    found = bhardwaj2021.figure5(settings, Path())
    table = found.tables["logit_ranks"]
    assert table["n_key"].to_list() == [71, 71]
    assert table["lowest_rank"].to_list() == [70, 70]
    assert "0 of 40 have a rank of at most d_k = 32" in found.findings
    assert list(found.charts) == ["logit_ranks"]
    with pytest.raises(InputError, match="reviews"):
        bhardwaj2021.figure5(replace(settings, reviews=6), Path())


def test_published_table_is_whole():
    table = published_accuracies()
    assert set(table["task"]) == set(TASKS)
    assert table.columns[2:] == list(map(str, D_K))
    assert not table.null_count().sum_horizontal().item()
    assert published_accuracy("trec", "add", 8) == 0.842
    assert published_accuracy("trec", "add", 3) is None
