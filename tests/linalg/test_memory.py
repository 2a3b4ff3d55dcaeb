"""Memory budgets follow the device."""

import pytest
import torch

from identilens.linalg.memory import LARGE, blocks, budget_on


@pytest.mark.parametrize(("free", "expected"), [(80 * 2**30, 40 * 2**30), (2**20, LARGE)])
def test_a_large_computation_takes_half_of_what_a_device_has_free(monkeypatch, free, expected):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * 2**30))
    assert budget_on(torch.device("cuda", 0)) == expected
    assert budget_on(torch.device("cpu")) == LARGE


def test_blocks_cover_every_place_once():
    for count, size in ((0, 1), (5, 2**40), (1000, 2**20)):
        parts = blocks(count, size, torch.device("cpu"), multiple=3)
        assert [place for part in parts for place in range(count)[part]] == [*range(count)]
        assert all(len(range(count)[part]) <= max(3, 2**25 // size) for part in parts)
