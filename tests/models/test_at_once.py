"""How much of a batch is taken at a time, by device."""

import pytest
import torch

from identilens.models.at_once import room, slices, texts_of_a_product


@pytest.mark.parametrize(("device", "size", "parts"), [("cpu", 5, [1, 1, 1]), ("cuda", 320, [3])])
def test_a_gpu_takes_more_at_a_time(device, size, parts):
    assert room(5, torch.device(device)) == size
    found = texts_of_a_product(3, torch.device(device))
    assert [part.stop - part.start for part in found] == parts
    assert [place for part in found for place in range(3)[part]] == [0, 1, 2]


def test_the_last_part_ends_with_the_whole():
    assert slices(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert slices(0, 3) == []
