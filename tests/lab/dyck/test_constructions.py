"""Corollary 1 and Theorem 1 as weights."""

import pytest
import torch

from helpers.heads import normals, seeded
from identilens.lab.dyck.embeddings import symbols
from identilens.lab.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.sufficiency import (
    balanced_scores,
    sufficient_model,
    uniform_transformer,
)
from identilens.lab.dyck.train.measuring import dyck_lens


def prefixes(language, length, count=3, seed=0):
    return with_start(language.sample_prefixes(count, length, seeded(seed)))


@pytest.mark.parametrize(
    ("language", "length"),
    [
        (Dyck(2, 4), 2000), (Dyck(3, 8, 0.6), 2000), (Dyck(1, 1), 60), (Dyck(2, 1, 0.2), 60), (Dyck(4, 2), 300),
    ],
)  # fmt: skip
def test_uniform_attention_generates_dyck_of_any_length(language, length):
    model = uniform_transformer(language)
    tokens = prefixes(language, length)
    assert support_accuracy(model, tokens) == 1
    found = closing_accuracy(model, tokens)
    assert (found.argmax, found.threshold) == (1, 1)


def test_its_attention_is_uniform_and_its_law_the_languages():
    language = Dyck(2, 3, 0.3)
    model = uniform_transformer(language).double()
    lens = dyck_lens(model, "uniform")
    captured = next(lens.capture(["([])[[]](("], weights=True))
    for head in captured.heads:
        even = torch.ones_like(head.weights).tril()
        assert torch.allclose(head.weights, even / even.sum(-1, keepdim=True))
    with torch.no_grad():
        law = torch.softmax(model(torch.tensor([[1, 3]])).logits[0], -1)
    assert law[0].tolist() == pytest.approx([0, 0, 0, 0.5, 0.5, 0, 0], abs=1e-6)
    assert law[1].tolist() == pytest.approx([0, 0, 0, 0.15, 0.15, 0.7, 0], abs=1e-6)


@pytest.mark.parametrize(("types", "depth", "spread"), [(2, 3, 2.0), (3, 2, 0.0), (2, 5, 1.0)])
def test_balanced_attention_of_any_shape_suffices(types, depth, spread):
    language = Dyck(types, depth, 0.4)
    generator = seeded(types)
    count = symbols(language)
    embeddings = normals(generator, count, count + 5)
    scores = balanced_scores(language, spread, generator)
    model = sufficient_model(language, embeddings, scores)
    tokens = prefixes(language, 400)
    assert support_accuracy(model, tokens) == 1
    assert closing_accuracy(model, tokens).argmax == 1
    # The model's own attention is the one asked for.
    captured = next(dyck_lens(model, "balanced").capture([tokens[0, :9].tolist()], weights=True))
    weights = next(captured.heads).weights
    assert float((weights[-1].max() / weights[-1].min()).log()) <= 2 * 2 * spread + 1e-9
