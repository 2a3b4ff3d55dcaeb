"""The axis of the heads in the products of attention that was followed."""

import pytest
import torch

from identilens.models.following.routes import Heads


@pytest.mark.parametrize(("axis", "count"), [(0, 3), (0, 6), (1, 2), (1, 4)])
def test_heads_are_split_off_and_joined_again(axis, count):
    tensor = torch.arange(6.0 * 4 * 5 * 7).view(6, 4, 5, 7)
    heads = Heads(axis, count)
    split = heads.split(tensor)
    assert split.shape == (24 // count, count, 5, 7)
    assert torch.equal(heads.joined(split, (6, 4)), tensor)
    # Of several texts on one axis, the heads of the first text come first.
    first = tensor[:count, 0] if axis == 0 else tensor[0, :count]
    assert torch.equal(split[0], first)
