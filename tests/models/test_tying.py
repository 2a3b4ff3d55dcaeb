"""The parameters of a group of heads, and one attention module run again: a layer of two heads, beside plain torch."""

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from helpers import zoo
from helpers.heads import normals, seeded
from helpers.zoo import ids
from identilens.measures.attention.realisable.coordinates import Parameters
from identilens.models.explaining import Exact
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.tying import group_parameters

TEXT = ids(6)


def lens_of(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    return Lens(model.double().eval(), name="tiny")


@pytest.fixture(scope="module")
def llama():
    config = hf.LlamaConfig(
        vocab_size=96, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    lens = lens_of(hf.LlamaModel(config))
    with Exact():
        [item] = lens.read([TEXT])
        head = read_head(lens, item, 0, 1)
        group = group_parameters(lens, item, head)
    return lens, item, head, group


@pytest.fixture(scope="module")
def gpt2():
    lens = lens_of(hf.GPT2Model(hf.GPT2Config(vocab_size=96, n_embd=8, n_layer=1, n_head=2)))
    [item] = lens.read([TEXT])
    head = read_head(lens, item, 0, 1)
    return lens, item, head, group_parameters(lens, item, head)


def vectors_of(group, coordinates):
    """The queries and keys of the second head."""
    queries, keys = group.vectors(coordinates).split([group.head.group * 24, 24])
    return queries.view(-1, 4)[-6:], keys.view(-1, 4)


def moved_by(group, size=0.1):
    generator = seeded(1)
    return group.start + size * normals(generator, group.start.shape)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_model_with_other_coordinates_computes_their_queries_and_keys(name, request):
    lens, item, head, group = request.getfixturevalue(name)
    before = lens.digest
    coordinates = moved_by(group)
    with Exact():
        queries, keys = vectors_of(group, coordinates)
        with group.changed(lens, coordinates):
            inside = read_head(lens, item, 0, 1)
        own = vectors_of(group, group.start)
        vectors = group.vectors(coordinates)
        solved = group.solved(vectors)
    assert_close(inside.queries, queries, atol=1e-10, rtol=0)
    assert_close(inside.keys, keys, atol=1e-10, rtol=0)
    assert_close(own[0], head.queries, atol=1e-10, rtol=0)
    assert_close(inside.values, head.values, atol=1e-12, rtol=0)
    heads = group.softmax_map()
    weights = heads.weights(vectors)[heads.rows]
    assert_close(weights, inside.attention, atol=1e-10, rtol=0)
    assert_close(solved, coordinates, atol=1e-12, rtol=0)
    assert float((inside.attention - head.attention).abs().max()) > 1e-3
    assert lens.digest == before


def test_no_formula_where_tokens_repeat_or_a_text_is_longer_than_what_maps_can_make(llama):
    lens, *_ = llama
    for text in ([5, 6, 7, 5, 6, 7], ids(12)):
        with Exact():
            [item] = lens.read([text])
            group = group_parameters(lens, item, read_head(lens, item, 0, 1))
        assert group.factors is None
        assert isinstance(group.softmax_map().coordinates, Parameters)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "encoder"), ("gpt2", "decoder"), ("opt", "decoder"), ("t5", "cross"), ("bart", "decoder"),
        ("whisper", "encoder"), ("gpt_neox", "decoder"),
    ],
)  # fmt: skip
def test_a_head_of_its_own_computes_the_queries_and_keys_that_are_asked_for(family, kind):
    lens = Lens(zoo.build(family))
    item = lens.read(zoo.example(family))[0]
    head = read_head(lens, item, 1, 2, kind)
    before, other = lens.digest, read_head(lens, item, 1, 1, kind)
    queries, keys = 1.5 * head.queries, head.keys + 0.1
    group = group_parameters(lens, item, head)
    vectors = torch.cat([queries.flatten(), keys.flatten()])
    with group.changed(lens, group.solved(vectors)):
        inside, others = read_head(lens, item, 1, 2, kind), read_head(lens, item, 1, 1, kind)
    assert_close(inside.queries, queries, atol=1e-5, rtol=1e-4)
    assert_close(inside.keys, keys, atol=1e-5, rtol=1e-4)
    assert_close(others.attention, other.attention, atol=1e-6, rtol=0)
    assert_close(inside.values, head.values, atol=1e-6, rtol=0)
    assert lens.digest == before
    assert_close(read_head(lens, item, 1, 2, kind).queries, head.queries)


def test_the_parameters_change_least():
    """As the least solution of [E, 1] (W' − W, b' − b)ᵀ = the change of queries and keys."""
    lens = Lens(zoo.build("bert").double())
    with Exact():
        item = lens.read(zoo.example("bert"))[0]
        head = read_head(lens, item, 1, 2)
        group = group_parameters(lens, item, head)
        start = group.vectors(group.start)
        move = torch.randn(start.shape, generator=seeded()).double()
        changed = group.maps(group.solved(start + move))
        [inputs] = group.replay.run(changed).inputs["query"]
    design = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    least = torch.linalg.pinv(design) @ move[: head.queries.numel()].view_as(head.queries)
    rows = slice(2 * head.d_k, 3 * head.d_k)
    linear = group.replay.module.get_submodule("query")
    own = torch.cat([linear.weight, linear.bias[:, None]], 1)
    assert_close((changed["query"] - own)[rows], least.mT, atol=1e-10, rtol=0)
