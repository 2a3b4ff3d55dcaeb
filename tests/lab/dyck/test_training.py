"""Stacked training: every member ends where it would end alone, and learns."""

from dataclasses import replace
from math import cos, pi

import pytest
import torch
from torch.nn import functional

from helpers.brackets import is_valid
from helpers.heads import seeded
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.evaluation import closing_accuracy
from identilens.lab.dyck.language import Dyck
from identilens.lab.dyck.parsing import parse
from identilens.lab.dyck.settings import DyckTraining
from identilens.lab.dyck.training import behind_nests, counted_places, new_model, train_models

SHORT = DyckTraining(length=12, tokens=1200, epochs=2, batch_size=25)
SMALL = {"hidden_size": 16, "intermediate_size": 12}
MINIMAL = {"block": "minimal", "first_layer": "one-hot", "num_hidden_layers": 1, "hidden_size": 20}


def same(first, second, tolerance=2e-4):
    return all(
        torch.allclose(one, two, atol=tolerance)
        for one, two in zip(first.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("options", "training"),
    [
        (SMALL, SHORT),
        ({**SMALL, "positions": "linear"}, replace(SHORT, data="prefixes", loss="all")),
        (MINIMAL, replace(SHORT, contrast=0.3, data="prefixes")),
    ],
)
def test_a_member_ends_where_it_ends_alone(options, training):
    config = DyckConfig(**options)
    together = train_models(config, [3, 8], training)
    alone = train_models(config, [8], training)
    assert same(together.models[1], alone.models[0])
    assert not same(*together.models)
    assert together.losses.shape == (2, 2)


def test_the_stack_takes_the_steps_of_a_plain_loop():
    config, seed, training = DyckConfig(**SMALL), 4, replace(SHORT, weight_decay=0.1)
    model = new_model(config, seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=training.learning_rate, weight_decay=0.1)
    data = config.language.sample(training, training.training_sequences, 0)
    generator = seeded(seed)
    for epoch in range(2):
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate * (1 + cos(pi * epoch / 2)) / 2
        for batch in torch.randperm(len(data), generator=generator).split(25):
            optimiser.zero_grad()
            labels = data[batch][:, 1:]
            closing = config.language.is_close(labels)
            logits = model(data[batch][:, :-1]).logits
            functional.cross_entropy(logits[closing], labels[closing]).backward()
            optimiser.step()
    assert same(train_models(config, [seed], training).models[0], model)


def test_training_teaches():
    training = DyckTraining(length=16, tokens=8000, epochs=20, learning_rate=1e-2)
    found = train_models(DyckConfig(**MINIMAL), [0, 1], training)
    assert found.losses[-1].max() < 0.05 < found.losses[0].min()
    tokens = Dyck().sample(training, 100, 99)
    scores = closing_accuracy(found.models, tokens)
    assert min(score.argmax for score in scores) > 0.97


def test_places_that_count():
    language = Dyck(1, 3)
    tokens = torch.tensor([[[1, 3, 4, 3, 4], [1, 3, 3, 4, 3]]])
    third = pytest.approx(1 / 3)
    weight = counted_places(language, tokens, SHORT)
    assert weight[0].tolist() == [[0, third, 0, third], [0, 0, third, 0]]
    everything = counted_places(language, tokens, replace(SHORT, loss="all"))
    assert everything[0].tolist() == [[pytest.approx(1 / 8)] * 4] * 2


def test_inserted_nests_keep_depth_and_stack():
    language = Dyck(3, 4)
    inputs = language.sample(SHORT, 5, 0)[None].expand(2, -1, -1)
    generators = [seeded(seed) for seed in range(2)]
    longer = behind_nests(language, inputs, 3, generators)
    assert longer.shape == (2, 5, 13 + 6)
    assert torch.equal(longer[..., 7:], inputs[..., 1:])
    assert bool(is_valid(language, longer.flatten(0, 1)).all())
    first, second = parse(language, longer[0]), parse(language, inputs[0])
    assert torch.equal(first.depth[:, 7:], second.depth[:, 1:])
    assert torch.equal(first.top_type[:, 7:], second.top_type[:, 1:])
    assert first.depth[:, 3].eq(3).all()
    assert not torch.equal(longer[0], longer[1])
