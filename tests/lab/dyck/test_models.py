"""Dyck models as Hugging Face models: loading, attention through the interface, stacked computation."""

import pytest
import torch

import identilens as idl
from helpers.heads import seeded
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.stacked import Stack
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.lab.dyck.training import new_model

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


def test_parameters_come_back_from_the_stack():
    models = [moved("gpt", seed) for seed in range(2)]
    others = [moved("gpt", seed + 5) for seed in range(2)]
    stack = Stack(others)
    stack.parameters = Stack(models).parameters
    stack.update_models()
    for model, other in zip(models, others, strict=True):
        assert all(
            torch.equal(one, two)
            for one, two in zip(model.parameters(), other.parameters(), strict=True)
        )


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
