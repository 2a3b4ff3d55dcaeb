"""A lens follows its model: what it says of the weights is said of those that are there now."""

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids
from identilens.models import Lens

CHANGES = {
    "in place": lambda weight: weight.data.add_(1),
    "without gradient": lambda weight: torch.no_grad()(lambda: weight.mul_(2))(),
    "through numpy": lambda weight: weight.detach().numpy().__imul__(2),
    "other storage": lambda weight: setattr(weight, "data", weight.data + 1),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_the_digest_is_that_of_the_weights_as_they_are(change):
    lens = Lens(build("bert"))
    before, weight = lens.digest, lens.model.encoder.layer[0].attention.self.query.weight
    kept = weight.detach().clone()
    assert lens.digest == before
    CHANGES[change](weight)
    assert lens.digest != before
    assert lens.facts["sha256"] == lens.digest
    with torch.no_grad():
        weight.copy_(kept)
    assert lens.digest == before


def test_an_adapter_switched_off_changes_the_digest():
    peft = pytest.importorskip("peft", reason="pip install peft for the tests of adapters")
    config = peft.LoraConfig(target_modules=["o_proj"], r=4, init_lora_weights=False)
    wrapped = peft.get_peft_model(build("llama"), config)
    lens = Lens(wrapped)
    before = lens.digest
    with wrapped.disable_adapter():
        assert lens.digest != before
    assert lens.digest == before


@pytest.mark.parametrize("change", ["step", "double"])
def test_an_audit_after_training_is_that_of_a_fresh_lens(change):
    model = build("bert")
    lens = Lens(model)
    idl.audit(lens, [ids(20)], value_bias="out")
    if change == "double":
        model.double()
    else:
        model(torch.tensor([ids(9)])).last_hidden_state.square().sum().backward()
        torch.optim.SGD(model.parameters(), 1.0).step()
    again, fresh = (idl.audit(one, [ids(20)], value_bias="out").table for one in (lens, Lens(model)))
    assert again.equals(fresh)
