"""Minimisers of the regularised squared loss: every prefix counts, the loss is the model's own, and λ is in it."""

from itertools import product

import pytest
import torch

from helpers.brackets import is_valid
from identilens.errors import InputError
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.embeddings import symbol_ids, symbols
from identilens.lab.dyck.language import SPECIAL, START, Dyck
from identilens.lab.dyck.minimiser import minimise, predict
from identilens.lab.dyck.parsing import next_token_distribution, parse
from identilens.lab.dyck.prefixes import all_prefixes
from identilens.lab.dyck.training import new_model

LANGUAGE = Dyck(2, 2, 0.6)
CONFIG = DyckConfig(
    max_depth=2, open_probability=0.6, block="paper", first_layer="one-hot", num_hidden_layers=1, hidden_size=12,
    projection_widths=[[12]], projection_residual=False, norm_constant=0.1, initializer_range=0.3,
)  # fmt: skip


def written(length):
    """Every prefix of so many brackets behind a start token, its probability, and the law of what follows."""
    tokens = torch.tensor(list(product([START], *[range(SPECIAL, LANGUAGE.vocabulary)] * length)))
    tokens = tokens[is_valid(LANGUAGE, tokens)]
    found = parse(LANGUAGE, tokens)
    law = next_token_distribution(LANGUAGE, found.depth, found.top_type)
    steps = law[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    return tokens, steps.prod(1), law[:, -1]


def test_all_prefixes_are_those_of_the_law():
    found, length = all_prefixes(LANGUAGE, 6), 6
    assert float(found.share.sum()) == pytest.approx(1)
    held = {
        (int(last), *counts): row
        for row, (last, counts) in enumerate(zip(found.last, found.counts.tolist(), strict=True))
    }
    share = torch.zeros_like(found.share)
    for size in range(length):
        tokens, chances, laws = written(size)
        ids = symbol_ids(LANGUAGE, tokens)
        counts = torch.nn.functional.one_hot(ids, symbols(LANGUAGE)).sum(1).tolist()
        for last, count, chance, law in zip(
            ids[:, -1].tolist(), counts, chances, laws, strict=True
        ):
            row = held[(last, *count)]
            share[row] += chance / length
            assert torch.allclose(found.law[row], law)
    assert torch.allclose(share, found.share, atol=1e-15)
    with pytest.raises(InputError, match="prefixes"):
        all_prefixes(Dyck(2, 4), 40)


def test_predictions_are_the_models():
    model = new_model(CONFIG, 0).double()
    tokens, _, _ = written(5)
    ids = symbol_ids(LANGUAGE, tokens)
    counts = torch.nn.functional.one_hot(ids, symbols(LANGUAGE)).sum(1)
    prefixes = all_prefixes(LANGUAGE, 6)
    with torch.no_grad():
        logits, given = model(tokens).logits[:, -1], predict(model, prefixes)
    for last, count, wanted in zip(ids[:, -1], counts, logits, strict=True):
        row = ((prefixes.last == last) & (prefixes.counts == count).all(1)).nonzero().item()
        assert torch.allclose(given[row], wanted, atol=1e-12)


def test_the_objective_falls_and_weights_grow_as_lambda_goes_to_0():
    prefixes, strengths = all_prefixes(LANGUAGE, 6), (1e-2, 1e-3, 1e-4)
    found = list(minimise(CONFIG, prefixes, strengths, 0, 150))
    assert [one["strength"] for one in found] == list(strengths)
    losses, norms = [one["loss"] for one in found], [one["norm"] for one in found]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.002
    assert norms == sorted(norms)
    assert all(
        one["objective"] == pytest.approx(one["loss"] + one["strength"] / 2 * one["norm"] ** 2)
        for one in found
    )
    assert found[0]["gradient"] < 0.2
    again = minimise(CONFIG, prefixes, strengths[:1], 0, 150)
    assert next(again)["violation"] == found[0]["violation"]
