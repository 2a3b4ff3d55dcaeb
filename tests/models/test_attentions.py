"""Attention in the form of `output_attentions`: raw, effective and other measures."""

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import BUILDERS, build, example
from identilens.models import Lens
from identilens.models.inputs import collate


def maps(output):
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return {name: output[name] for name in names if output.get(name)}


@pytest.mark.parametrize("family", sorted(BUILDERS))
def test_raw_attentions_are_those_of_the_family(family):
    model = build(family)
    lens = Lens(model)
    items = lens.read(example(family))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**collate(items, "cpu"), use_cache=False, output_attentions=True)
    kinds = {"attentions": None, "encoder_attentions": "encoder", "decoder_attentions": "decoder"}
    for index, item in enumerate(items):
        for name, layers in maps(output).items():
            raw = idl.attentions(lens, item, kind=kinds.get(name, "cross"), measure="raw")
            assert len(raw) == len(layers)
            for one, other in zip(raw, layers, strict=True):
                rows, keys = one.shape[-2:]
                own = other[index, :, :rows, :keys]
                assert_close(one[0], own, atol=2e-5, rtol=1e-3)
                assert not other[index, :, :rows, keys:].any()


def test_measures_and_signs(bundled):
    text = (
        "The keeper of the lighthouse wrote down every ship, although none had stopped there for many years."
        * 3
    )
    found = {
        name: idl.attentions(bundled, text, measure=name) for name in ("raw", "effective", "norm")
    }
    (seen,) = bundled.capture(text, weights=True)
    head = list(seen.heads)[17]
    assert [len(layers) for layers in found.values()] == [6, 6, 6]
    assert_close(found["effective"][1][0, 5], head.effective.float(), atol=1e-5, rtol=1e-4)
    for name in ("raw", "norm"):
        assert_close(
            found[name][1].sum(-1), torch.ones(1, 12, head.values.shape[0]), atol=1e-4, rtol=0
        )
    effective = found["effective"][0]
    assert effective.min() < 0
