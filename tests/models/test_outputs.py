"""How far two outputs of a model are apart, by hand."""

from math import isnan

import pytest
import torch

from helpers.zoo import build, ids
from identilens.models.capture import Lengths
from identilens.models.lens import Lens
from identilens.models.outputs import deviation, relative


def test_the_largest_difference_over_the_largest_expected_entry():
    expected = torch.tensor([1.0, -4.0, 2.0])
    assert relative(torch.tensor([1.0, -4.0, 3.0]), expected) == 0.25
    assert relative(torch.tensor([1.5, -6.0, 2.0]), expected) == 0.5
    assert relative(expected, expected) == 0
    assert relative(torch.ones(2), torch.zeros(2)) == pytest.approx(1e12)
    assert relative(torch.zeros(0, 3), torch.zeros(0, 3)) == 0
    # Logits of tokens that are not allowed agree where both are infinite, and do not hide the others.
    masked = torch.tensor([-torch.inf, 4.0])
    assert relative(masked, masked) == 0
    assert relative(torch.tensor([-torch.inf, 3.0]), masked) == 0.25
    assert relative(torch.tensor([2.0, 4.0]), masked) == torch.inf


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_what_is_no_number_never_agrees(first):
    [item] = Lens(build("bert")).read([ids(3)])
    lengths = Lengths([item])
    plain = {"a": torch.ones(1, 3), "b": torch.ones(1, 3), "c": torch.ones(1, 3)}
    broken = torch.tensor([[1.0, torch.nan, 1.0]])
    changed = plain | {"a": plain["a"] + first, "b": broken}
    assert isnan(deviation(plain, changed, lengths, [item]))
    assert isnan(deviation(changed, plain, lengths, [item]))
    assert isnan(deviation(changed, changed, lengths, [item]))


def test_padding_is_not_compared_and_the_worst_tensor_counts():
    items = Lens(build("bert")).read([ids(3), ids(2, 1)])
    lengths = Lengths(items)
    states, pooled = torch.ones(2, 3, 4), torch.ones(2, 4)
    plain = {"states": states, "more": (states,), "pooled": pooled, "attentions": states}
    assert deviation(plain, plain, lengths, items) == 0
    padded, inside = states.clone(), states.clone()
    padded[1, 2] = 9
    inside[1, 1] = 1.5
    assert deviation(plain, plain | {"states": padded}, lengths, items) == 0
    assert deviation(plain, plain | {"more": (inside,)}, lengths, items) == 0.5
    without = {name: one for name, one in plain.items() if name != "attentions"}
    assert deviation(plain, without, lengths, items) == 0
    # Of texts of several lengths in a batch, what has no positions may depend on the padding.
    assert deviation(plain, plain | {"pooled": 3 * pooled}, lengths, items) == 0
    same = Lens(build("bert")).read([ids(3), ids(3, 1)])
    changed = plain | {"pooled": 3 * pooled}
    assert deviation(plain, changed, Lengths(same), same) == 2
    [alone] = [items[:1]]
    assert (
        deviation({"one": torch.ones(())}, {"one": torch.tensor(1.25)}, Lengths(alone), alone)
        == 0.25
    )
