"""Weights put into the running model: nothing changes with its own, everything adds up with others."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers import zoo
from helpers.heads import seen_of
from helpers.zoo import build, ids
from identilens.errors import InputError
from identilens.models import Lens, Rows
from identilens.models.layout import (
    chosen_heads,
    find_site,
)
from identilens.models.map_runs import MapRuns


def one_text(lens, family):
    item = lens.read(zoo.example(family))[0]
    return item, next(lens.capture(item, weights=True))


@pytest.mark.parametrize("family", zoo.BUILDERS)
def test_own_weights_change_nothing_and_uniform_ones_everything(family):
    lens = Lens(zoo.build(family))
    item, captured = one_text(lens, family)
    plain = lens.substitute({}, item)
    own = lens.substitute(
        {(head.layer, head.head, head.kind): head.weights for head in captured.heads}, item
    )
    uniform = {
        (head.layer, head.head, head.kind): seen / seen.sum(-1, keepdim=True)
        for head in captured.heads
        for seen in [seen_of(head.visible, head.weights).double()]
    }
    other = lens.substitute(uniform, item)
    for sequence, states in plain.hidden_states.items():
        assert torch.allclose(own.hidden_states[sequence], states, atol=2e-5, rtol=1e-5)
        assert torch.equal(other.hidden_states[sequence][0], states[0]), (
            "embeddings come before any attention"
        )
        assert (other.hidden_states[sequence][-1] - states[-1]).abs().max() > 1e-3
    if plain.loss is not None:
        assert own.loss == pytest.approx(plain.loss, abs=1e-5)
        assert other.loss != pytest.approx(plain.loss, abs=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_the_loss_is_that_of_the_text(family):
    lens = Lens(zoo.build(family))
    item = lens.read(zoo.example(family))[0]
    run = lens.substitute({}, item)
    ids = item.tensors["decoder_input_ids" if family == "t5" else "input_ids"]
    expected = torch.nn.functional.cross_entropy(run.logits[:-1], ids[1:])
    assert run.loss == pytest.approx(float(expected), abs=1e-5)


def test_rows_leave_the_others_alone():
    lens = Lens(zoo.build("bert"))
    item, captured = one_text(lens, "bert")
    n = len(captured.tokens["encoder"])
    last = max(head.layer for head in captured.heads)
    row = torch.zeros(1, n)
    row[0, 0] = 1.0
    plain = lens.substitute({}, item).hidden_states["encoder"][-1]
    changed = lens.substitute({(last, 1): Rows([2], row)}, item).hidden_states["encoder"][-1]
    moved = (changed - plain).abs().amax(-1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [2]


def test_hidden_keys_and_ambiguous_kinds_are_refused():
    lens = Lens(zoo.build("gpt2"))
    item, captured = one_text(lens, "gpt2")
    n = len(next(iter(captured.tokens.values())))
    with pytest.raises(InputError, match="model"):
        lens.substitute({(0, 0): torch.full((n, n), 1 / n)}, item)
    both = Lens(zoo.build("t5"))
    other = both.read(zoo.example("t5"))[0]
    with pytest.raises(InputError, match="attention"):
        find_site(both.sites(other), 0, 0)


SITES = tuple(
    SimpleNamespace(
        layer=layer, kind=kind, heads=heads, zeros=torch.zeros(width), slot=place, mixer=mixer
    )
    for layer, kind, heads, width, place, mixer in (
        (0, "decoder", 2, 4, ("layers", 0), False), (2, "decoder", 3, 4, ("layers", 2), True),
        (0, "cross", 2, 8, None, False),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((0, 0), "attention"), ((0, 0, "encoder"), "attention"), ((1, 0, "decoder"), "attention"),
        ((1, 0, "cross"), "layers"), ((2, 3, "decoder"), "layer"), ((0, -1, "decoder"), "layer"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked_shapes")
def test_heads_that_a_model_lacks_are_named(given, words):
    with pytest.raises(InputError, match=words):
        find_site(SITES, *given)


@pytest.mark.usefixtures("unchecked_shapes")
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


FAMILIES = [
    "bert", "gpt2", "llama", "gemma3", "albert", "t5", "identifiable_con", "vit", "bert_decoder",
]  # fmt: skip


def changes_of(head):
    """One zeroed weight, a row renormalised without its largest key, and two rows at once."""
    A = head.attention
    zeroed, rest = A[3].clone(), A[4].clone()
    zeroed[0] = 0
    rest[A[4].argmax()] = 0
    return [
        Rows([3], zeroed[None]),
        Rows([4], rest[None] / rest.sum()),
        Rows([3, 4], torch.stack([zeroed, A[4]])),
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", [2, 64])
def test_changes_side_by_side_are_those_put_back_alone(family, batch):
    lens = idl.Lens(build(family).double())
    item = lens.read(
        {"pixel_values": torch.randn(1, 3, 12, 12, dtype=torch.float64)}
        if family == "vit"
        else ids(9)
    )[0]
    head = lens.layer(item, 1, "encoder" if family == "t5" else None).head(2)
    runs = MapRuns(lens, item, head, batch)
    changes = changes_of(head)
    found, where = runs.effects(changes), (1, 2, head.kind)
    plain = lens.substitute({where: head.attention}, item)
    for number, change in enumerate(changes):
        alone = lens.substitute({where: change}, item)
        before, after = (list(run.hidden_states.values())[-1][-1] for run in (plain, alone))
        expected = torch.linalg.vector_norm(after - before) / torch.linalg.vector_norm(before)
        assert float(found["hidden"][number]) == pytest.approx(float(expected), rel=1e-4)
        assert ("logits" in found) == (plain.logits is not None)
        assert ("loss" in found) == (plain.loss is not None)
        if plain.loss is not None:
            assert float(found["loss"][number]) == pytest.approx(
                abs(alone.loss - plain.loss), abs=2e-6
            )
        if plain.logits is not None:
            moved = torch.linalg.vector_norm(
                alone.logits - plain.logits
            ) / torch.linalg.vector_norm(plain.logits)
            assert float(found["logits"][number]) == pytest.approx(float(moved), rel=1e-4)


def test_outputs_of_the_layer_come_without_the_later_layers():
    lens = idl.Lens(build("bert").double())
    [item] = lens.read([ids(9)])
    head = lens.layer(item, 0).head(1)
    runs, changes = MapRuns(lens, item, head, 2), changes_of(head)
    called = []
    with lens.body.encoder.layer[1].register_forward_hook(lambda *_: called.append(True)):
        found = runs.layer_outputs(changes)
    assert not called
    for output, change in zip(found, changes, strict=True):
        expected = lens.substitute({(0, 1): change}, item).hidden_states["encoder"][1]
        assert_close(output, expected)
