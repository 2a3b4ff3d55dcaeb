"""Names, sizes and choices that models need, by hand and without a forward pass."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from identilens.errors import InputError
from identilens.models.capture import Lengths, split_states
from identilens.models.inputs import Item
from identilens.models.layout import (
    _changes,
    _positions,
    chosen_heads,
    find_site,
    other_layers,
)
from identilens.models.outputs import _own
from identilens.models.sequences import sides
from identilens.models.threads import _BEFORE, attribute

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.mark.parametrize(
    ("kind", "sequences", "expected"),
    [
        ("encoder", ["encoder"], ("encoder", "encoder")),
        ("decoder", ["encoder"], ("encoder", "encoder")),
        ("encoder", ["encoder", "decoder"], ("encoder", "encoder")),
        ("decoder", ["encoder", "decoder"], ("decoder", "decoder")),
        ("cross", ["encoder", "decoder"], ("decoder", "encoder")),
    ],
)
def test_the_sequences_of_queries_and_keys(kind, sequences, expected):
    assert sides(kind, sequences) == expected


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
    assert other_layers(model, SITES) == (("layers.1 (ReLU)",), ("layers.2 (Tanh)",))


def test_the_axes_of_positions():
    query = SimpleNamespace(query=torch.zeros(1, 2, 6, 4))
    for shape, axes in (
        ((1, 6, 8), (1,)), ((6, 1, 8), (0,)), ((2, 6, 8), (1,)), ((1, 2, 3, 3), (2, 3)), ((1, 3, 3, 2), (1, 2)),
        ((1, 3, 3, 3), ()), ((1, 2, 3, 4), ()), ((2, 5, 8), ()),
    ):  # fmt: skip
        assert _positions(torch.zeros(shape), query) == axes, shape


def test_a_change_counts_at_other_positions_and_above_rounding():
    before = torch.ones(1, 3, 2)
    eps = torch.finfo(torch.float32).eps
    for place, size, found in (
        (1, 1.0, False),
        (0, 1.0, True),
        (2, 7 * eps, False),
        (2, 9 * eps, True),
    ):
        after = before.clone()
        after[0, place, 1] += size
        # Of the largest entry, which a change may raise to 2.
        assert _changes(before, after, (1,), (1,)) == found, (place, size)


def test_attributes_are_restored_by_the_last_who_needs_them():
    owner = SimpleNamespace(mode="first")
    first, second = (attribute([owner], "mode", value) for value in ("second", "third"))
    first.__enter__()
    second.__enter__()
    assert owner.mode == "third"
    first.__exit__(None, None, None)
    assert owner.mode == "third"
    second.__exit__(None, None, None)
    assert owner.mode == "first"
    assert _BEFORE == {}
    other = SimpleNamespace(mode="a")
    with attribute([owner, other], "mode", "set"):
        assert (owner.mode, other.mode) == ("set", "set")
    assert (owner.mode, other.mode) == ("first", "a")
    with pytest.raises(AttributeError), attribute([owner, SimpleNamespace()], "mode", "set"):
        pass
    assert owner.mode == "first"


def text(encoder, decoder=None, **tensors):
    tokens = {"encoder": tuple("abcdefgh"[:encoder])}
    if decoder is not None:
        tokens["decoder"] = tuple("abcdefgh"[:decoder])
    return Item(tensors, tokens)


def test_positions_of_texts_in_a_padded_batch():
    lengths = Lengths([text(3, 2), text(5, 1)])
    assert lengths.padded
    assert not Lengths([text(3), text(3)]).padded
    assert lengths.counted("encoder", 5)
    assert not lengths.counted("encoder", 3)
    assert not lengths.counted("image", 5)
    assert [lengths.kept(index, "encoder", 5) for index in (0, 1)] == [3, 5]
    assert lengths.kept(0, "encoder", 9) == 9, "patches or frames, which are no tokens"

    def call(queries, keys):
        return SimpleNamespace(query=torch.zeros(2, 1, queries, 1), key=torch.zeros(2, 1, keys, 1))

    assert lengths.of(0, "encoder", call(5, 5)) == (3, 3)
    assert lengths.of(1, "decoder", call(2, 2)) == (1, 1)
    assert lengths.of(0, "cross", call(2, 5)) == (2, 3)


class Output(dict):
    """An output of a model, whose entries are attributes too."""

    __getattr__ = dict.__getitem__


def test_hidden_states_of_a_text_come_without_padding():
    lengths = Lengths([text(3, 2), text(5, 1)])
    states = [torch.arange(20.0).reshape(2, 5, 2) + layer for layer in (0, 100)]
    targets = [torch.arange(8.0).reshape(2, 2, 2)]
    output = Output(encoder_hidden_states=states, decoder_hidden_states=targets)
    found = split_states(output, lengths, 0)
    assert {name: tuple(one.shape) for name, one in found.items()} == {
        "encoder": (2, 3, 2), "decoder": (1, 2, 2),
    }  # fmt: skip
    assert torch.equal(found["encoder"][1], states[1][0, :3])
    assert split_states(output, lengths, 1)["decoder"].shape == (1, 1, 2)
    alone = split_states(Output(hidden_states=states), Lengths([text(3), text(5)]), 0)
    assert list(alone) == ["encoder"]
    assert alone["encoder"].shape == (2, 3, 2)


def test_the_part_of_a_text_in_an_output():
    items = [text(3), text(5)]
    lengths = Lengths(items)
    assert _own("logits", torch.ones(2, 4), 0, lengths, items) is None
    assert _own("logits", torch.ones(2, 4), 1, Lengths([text(3)] * 2), items) == 1
    assert _own("any", torch.ones(3, 5, 2), 0, lengths, items) is None
    assert _own("any", torch.ones(2, 5, 2), 0, lengths, items) == (0, slice(3))
    assert _own("any", torch.ones(1), 0, lengths, items[:1]) is ...
    both = [text(3, 2), text(5, 1)]
    for name, end in (("encoder_last", 3), ("last", 2)):
        assert _own(name, torch.ones(2, 5 if end == 3 else 2, 1), 0, Lengths(both), both) == (
            0,
            slice(end),
        )
