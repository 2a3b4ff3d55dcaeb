"""Names, sizes and choices that models need, by hand and without a forward pass."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from identilens.errors import InputError
from identilens.models.layout import (
    chosen_heads,
    find_site,
    layers_with_mixers,
    layers_without_attention,
)

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


SITES = tuple(
    SimpleNamespace(
        layer=layer, kind=kind, heads=heads, value_bias=torch.zeros(1, width), place=place, mixer=mixer
    )
    for layer, kind, heads, width, place, mixer in (
        (0, "decoder", 2, 4, ("layers", 0), False), (2, "decoder", 3, 4, ("layers", 2), True),
        (0, "cross", 2, 8, None, False),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "found"), [((0, 1, "decoder"), 0), ((2, 2, "decoder"), 1), ((0, 0, "cross"), 2)]
)
def test_a_head_is_found_in_its_attention(given, found):
    assert find_site(SITES, *given) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((0, 0), "attention"), ((0, 0, "encoder"), "attention"), ((1, 0, "decoder"), "attention"),
        ((1, 0, "cross"), "layers"), ((2, 3, "decoder"), "layer"), ((0, -1, "decoder"), "layer"),
    ],
)  # fmt: skip
def test_heads_that_a_model_lacks_are_named(given, words):
    with pytest.raises(InputError, match=words):
        find_site(SITES, *given)


def test_heads_are_chosen_in_the_order_of_the_calls():
    def chosen(*given):
        return [(site.kind, site.layer, head) for site, head in chosen_heads(SITES, *given)]

    assert chosen(None, None, None) == [
        ("decoder", 0, 0), ("decoder", 0, 1), ("decoder", 2, 0), ("decoder", 2, 1), ("decoder", 2, 2),
        ("cross", 0, 0), ("cross", 0, 1),
    ]  # fmt: skip
    assert chosen([2, 0], [1], "decoder") == [("decoder", 2, 1), ("decoder", 0, 1)]
    assert chosen([], None, "cross") == []
    with pytest.raises(InputError, match="layer"):
        chosen(None, [2], None)


def test_layers_without_attention_or_with_more_are_named():
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(1, 1), nn.ReLU(), nn.Tanh()])
    assert layers_without_attention(model, SITES) == ("layers.1 (ReLU)",)
    assert layers_with_mixers(model, SITES) == ("layers.2 (Tanh)",)
