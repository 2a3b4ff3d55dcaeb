"""Many changes of a map in one forward pass: each is what the model gives when it is changed alone."""

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import build, ids
from identilens.models.map_runs import MapRuns
from identilens.models.reading import read_head
from identilens.models.substitution import Rows

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
    head = read_head(lens, item, 1, 2, "encoder" if family == "t5" else None)
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
    head = read_head(lens, item, 0, 1)
    runs, changes = MapRuns(lens, item, head, 2), changes_of(head)
    called = []
    with lens.body.encoder.layer[1].register_forward_hook(lambda *_: called.append(True)):
        found = runs.layer_outputs(changes)
    assert not called
    for output, change in zip(found, changes, strict=True):
        expected = lens.substitute({(0, 1): change}, item).hidden_states["encoder"][1]
        assert_close(output, expected)
