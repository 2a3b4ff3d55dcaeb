"""Corollary 1 as weights."""

import pytest
import torch

from helpers.heads import seeded
from identilens.lab.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.sufficiency import uniform_transformer
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
