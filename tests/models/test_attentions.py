"""Captured weights are those of `output_attentions`."""

import pytest
import torch
from torch.testing import assert_close

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
    kinds = {"encoder_attentions": "encoder", "decoder_attentions": "decoder"}
    for index, captured in enumerate(lens.capture(items, weights=True, batch_size=1)):
        weights = {}
        for layer in captured.layers:
            weights.setdefault(layer.site.kind, []).append(layer.weights)
        for name, layers in maps(output).items():
            kind = next(iter(weights)) if name == "attentions" else kinds.get(name, "cross")
            raw = weights[kind]
            assert len(raw) == len(layers)
            for one, other in zip(raw, layers, strict=True):
                rows, keys = one.shape[-2:]
                own = other[index, :, :rows, :keys]
                assert_close(one, own, atol=2e-5, rtol=1e-3)
                assert not other[index, :, :rows, keys:].any()
