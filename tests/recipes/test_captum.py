"""docs/recipes.md on captum; run by `make test-recipes` in an environment with it."""

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import build, ids

attr = pytest.importorskip(
    "captum.attr", reason="make test-recipes installs captum in an environment of its own"
)


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
def test_the_weight_of_the_token_with_most_attribution_has_a_certificate():
    model, tokens = build("bert"), torch.tensor([ids(30)])
    lens = idl.Lens(model)
    model.set_attn_implementation("eager")

    def score(inputs):
        return model(inputs).last_hidden_state[:, 0].square().sum(-1)

    gradients = attr.LayerIntegratedGradients(score, model.embeddings)
    attributions = gradients.attribute(tokens, baselines=tokens * 0, n_steps=8).sum(-1)
    key = int(attributions[0].abs().argmax())
    weights = model(tokens, output_attentions=True).attentions[-1][0, :, 0, key]
    claim = idl.claims.weight(key)
    found = idl.certify(lens, ids(30), layers=1, queries=0, claim=claim, tolerance=0).claims
    assert found["head"].to_list() == list(range(4))
    assert_close(found["value"].to_torch().float(), weights, atol=2e-5, rtol=0)
    assert (found["lo"] <= found["value"]).all()
    assert (found["value"] <= found["hi"]).all()
    assert (found["hi"] - found["lo"]).max() > 0.01
