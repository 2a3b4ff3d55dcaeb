"""docs/recipes.md on captum; run by `make test-recipes` in an environment with it."""

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids

attr = pytest.importorskip(
    "captum.attr", reason="make test-recipes installs captum in an environment of its own"
)


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
def test_attributions_are_unchanged_and_effective_attention_stands_beside_them():
    model, tokens = build("bert"), torch.tensor([ids(30)])
    idl.register_attention()
    found = {}
    for name in ("eager", "identilens_effective"):
        model.set_attn_implementation(name)

        def score(inputs):
            return model(inputs).last_hidden_state[:, 0].square().sum(-1)

        gradients = attr.LayerIntegratedGradients(score, model.embeddings)
        found[name] = gradients.attribute(
            tokens, baselines=torch.zeros_like(tokens), n_steps=8
        ).sum(-1)
        attentions = model(tokens, output_attentions=True).attentions
    assert torch.equal(found["eager"], found["identilens_effective"])
    wanted = idl.attentions(idl.Lens(model), ids(30))
    torch.testing.assert_close(attentions[-1], wanted[-1], atol=2e-5, rtol=1e-3)
