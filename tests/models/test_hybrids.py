"""Models of which only some layers hold attention: the others are named, and layers keep their own numbers."""

import pytest
import torch

import identilens as idl
from helpers.zoo import HYBRIDS, build, ids
from identilens.errors import InputError, UnsupportedModelError
from identilens.models import Lens


@pytest.mark.parametrize("family", sorted(HYBRIDS))
def test_layers_keep_their_numbers_and_the_others_are_named(family):
    model = build(family)
    model.set_attn_implementation("eager")
    lens = Lens(model)
    text = next(lens.capture([ids(9)], weights=True))
    assert [(layer.site.layer, layer.site.kind) for layer in text.layers] == [(1, "decoder"), (3, "decoder")]
    assert [name.split(" ")[0] for name in lens.other_layers] == ["layers.0", "layers.2"]
    with torch.no_grad():
        reported = [one for one in model(torch.tensor([ids(9)]), output_attentions=True).attentions if one is not None]
    for layer, own in zip(text.layers, reported[-2:], strict=True):
        torch.testing.assert_close(layer.weights, own[0], atol=5e-5, rtol=0)


def test_an_audit_says_what_it_leaves_out():
    lens = Lens(build("jamba"))
    audit = idl.audit(lens, [ids(9), ids(6)], layers=(3,))
    assert audit.table["layer"].unique().to_list() == [3]
    assert audit.provenance["model"]["layers_without_attention"] == list(lens.other_layers)
    assert "Only attention is audited. 2 of the model's layers have none: layers.0 (JambaMamba" in audit.summary().text
    with pytest.raises(InputError, match=r"the model has attention in layers 1, 3; got \[0\]"):
        idl.audit(lens, [ids(9)], layers=(0, 3))
    assert "layers_without_attention" not in Lens(build("bert")).facts


def test_rollout_through_layers_without_attention_is_refused():
    with pytest.raises(UnsupportedModelError, match="rollout multiplies the attention of all layers, and layers.0"):
        idl.mixing(Lens(build("jamba")), [ids(9)])
