"""Stacked training: every member ends where it would end alone, and learns."""

from dataclasses import replace
from math import cos, pi

import polars as pl
import pytest
import torch
from torch.nn import functional

import identilens as idl
from helpers.brackets import is_valid
from helpers.dycks import MINIMAL
from helpers.heads import seeded
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.evaluation import closing_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.parsing import parse
from identilens.lab.dyck.settings import DyckTraining
from identilens.lab.dyck.sufficiency import uniform_transformer
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.lab.dyck.train.measuring import head_rows
from identilens.lab.dyck.training import Stack, behind_nests, new_model, train_models

SHORT = DyckTraining(length=12, tokens=1200, epochs=2, batch_size=25)
SMALL = {"hidden_size": 16, "intermediate_size": 12}


def same(first, second, tolerance=2e-4):
    return all(
        torch.allclose(one, two, atol=tolerance)
        for one, two in zip(first.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("options", "training"),
    [
        (SMALL, SHORT),
        ({**SMALL, "positions": "linear"}, replace(SHORT, data="prefixes")),
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
    assert min(closing_accuracy(model, tokens).argmax for model in found.models) > 0.97


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


CONFIGS = {
    "gpt": {},
    "one layer": {"num_hidden_layers": 1},
    "linear positions": {"positions": "linear"},
    "one layer, positions": {"num_hidden_layers": 1, "positions": "linear"},
    "three layers, two heads": {"num_hidden_layers": 3, "num_attention_heads": 2},
    "two heads, positions": {"num_attention_heads": 2, "positions": "linear"},
    "paper": {"block": "paper"},
    "paper, five heads": {"block": "paper", "num_attention_heads": 5},
    "paper, deep g": {"block": "paper", "projection_widths": [[20, 30], [40]], "projection_residual": False},
    "minimal": {"block": "minimal", "first_layer": "one-hot", "num_hidden_layers": 1},
    "minimal, type and depth": {"block": "minimal", "first_layer": "type-depth", "num_hidden_layers": 1},
    "minimal, two heads": {
        "block": "minimal", "first_layer": "angle", "num_hidden_layers": 1, "num_attention_heads": 2,
    },
    "minimal first layer, whole block": {"first_layer": "one-hot", "num_hidden_layers": 2},
}  # fmt: skip


def moved(name, seed=0):
    """A model whose attention is far from uniform and whose norms and biases are not those of the start."""
    model = new_model(DyckConfig(**CONFIGS[name]), seed)
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def words(count=4, length=20, seed=0):
    return with_start(Dyck().sample_prefixes(count, length, seeded(seed)))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_stack_computes_what_the_models_compute(name):
    models = [moved(name, seed) for seed in range(3)]
    tokens = torch.stack([words(seed=seed) for seed in range(3)])
    with torch.no_grad():
        apart = torch.stack([model(own).logits for model, own in zip(models, tokens, strict=True)])
        together = Stack(models).logits(tokens)
    assert torch.allclose(together, apart, atol=2e-5)
    assert apart.std() > 0.1


@pytest.mark.parametrize("name", ["gpt", "minimal", "paper", "minimal first layer, whole block"])
def test_a_saved_model_is_loaded_and_opened(name, tmp_path):
    model = moved(name)
    model.save_pretrained(tmp_path)
    bracket_tokenizer(model.config.language).save_pretrained(tmp_path)
    lens = idl.load(tmp_path, device="cpu")
    assert isinstance(lens.model, DyckForCausalLM)
    tokens = lens.tokenizer("([])", return_tensors="pt")
    assert tokens["input_ids"].tolist() == [[1, 3, 4, 6, 5]]
    with torch.no_grad():
        assert torch.equal(
            lens.model(tokens["input_ids"]).logits, model(tokens["input_ids"]).logits
        )
    audit = idl.audit(lens, ["([])[[]]", "(())"])
    assert audit.table["kind"].unique().to_list() == ["decoder"]
    assert audit.table["reconstruction_error"].max() < 1e-5
    # Keys of a kind have one value: on eight brackets the weights have a null space.
    assert audit.table["nullity"].max() > 0


@pytest.mark.parametrize("name", ["gpt", "linear positions", "minimal"])
def test_padding_changes_nothing(name):
    model = moved(name)
    tokens = words(1, 9)
    padded = torch.cat([tokens, torch.zeros(1, 4, dtype=torch.long)], 1)
    left = torch.cat([torch.zeros(1, 4, dtype=torch.long), tokens], 1)
    mask = torch.ones_like(tokens)
    none = torch.zeros(1, 4, dtype=torch.long)
    with torch.no_grad():
        alone = model(tokens).logits
        right = model(padded, attention_mask=torch.cat([mask, none], 1)).logits[:, :10]
        behind = model(left, attention_mask=torch.cat([none, mask], 1)).logits[:, 4:]
    assert torch.allclose(alone, right, atol=1e-5)
    assert torch.allclose(alone, behind, atol=1e-5)


def test_even_attention_is_needed_but_does_not_look_like_a_stack():
    tokens = with_start(Dyck().sample_complete(20, 28, seeded()))
    found = pl.DataFrame(head_rows(uniform_transformer(Dyck()), tokens))
    assert found["accuracy"].to_list() == [1, 1]
    # Even attention put in the place of even attention changes nothing; random attention does.
    assert found["even"].to_list() == [1, 1]
    assert found["random"].max() < 0.95
    assert found["removed"].max() < 0.9
    assert found["used"].all()
    assert not found["looks"].any()


def test_a_head_without_values_is_not_used():
    model = uniform_transformer(Dyck())
    with torch.no_grad():
        model.dyck.layers[1].attention.v_proj.weight.zero_()
    tokens = with_start(Dyck().sample_complete(20, 28, seeded()))
    found = pl.DataFrame(head_rows(model, tokens))
    assert found["used"].to_list() == [True, False]
    assert found["largest_fall"][1] == 0
