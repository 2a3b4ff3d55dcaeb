"""Weights put into the running model: nothing changes with its own, everything adds up with others."""

import pytest
import torch

from helpers import zoo
from identilens.errors import InputError
from identilens.models import Lens, Rows
from identilens.models.layout import find_site


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
        for seen in [
            torch.ones_like(head.weights) if head.visible is None else head.visible.double()
        ]
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
