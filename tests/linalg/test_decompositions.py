"""Decompositions that do not converge on a device are made on the processor, or end in a clear error."""

import torch

from helpers.heads import doubles
from identilens.linalg.decompositions import eigh

GRAM = doubles([[2.0, 1.0], [1.0, 3.0]])


def failing(monkeypatch, name, times):
    own, calls = getattr(torch.linalg, name), []

    def decompose(*args, **kwargs):
        calls.append(args[0].device)
        if len(calls) <= times:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.linalg, name, decompose)
    return calls


def test_what_fails_on_a_device_is_made_on_the_processor(monkeypatch):
    expected = eigh(GRAM)
    calls = failing(monkeypatch, "eigh", 1)
    found = eigh(GRAM)
    assert calls == [torch.device("cpu")] * 2
    assert all(map(torch.equal, expected, found))
