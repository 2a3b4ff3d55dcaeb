"""docs/recipes.md on nnsight; run by `make test-recipes` in an environment with it."""

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids

nnsight = pytest.importorskip(
    "nnsight", reason="make test-recipes installs nnsight in an environment of its own"
)


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
def test_a_weight_of_a_trace_has_a_certificate():
    model, tokens = build("bert"), torch.tensor([ids(30)])
    lens = idl.Lens(model)
    model.set_attn_implementation("eager")
    traced = nnsight.NNsight(model)
    with traced.trace(tokens):
        weights = traced.encoder.layer[1].attention.self.output[1].save()
    key = int(weights[0, 2, 5].argmax())
    claim = idl.claims.weight(key).above(0.01)
    found = idl.certify(lens, ids(30), layers=1, heads=2, queries=5, claim=claim, tolerance=0)
    [row] = found.claims.rows(named=True)
    assert row["value"] == pytest.approx(float(weights[0, 2, 5, key]), abs=2e-5)
    assert row["lo"] <= row["value"] <= row["hi"]
    assert row["hi"] - row["lo"] > 0.01
