"""Minimal first layers by hand."""

from math import atan, cos, sin

import pytest
import torch

from helpers.brackets import close_symbol, open_symbol, read_brackets
from identilens.lab.dyck.embeddings import minimal_embedding, symbol_ids
from identilens.lab.dyck.language import Dyck, with_start

LANGUAGE = Dyck(2, 3)


def test_symbols_are_types_and_depths():
    tokens = with_start(read_brackets(LANGUAGE, "([])")[None])[0]
    wanted = [
        0, open_symbol(LANGUAGE, 0, 1), open_symbol(LANGUAGE, 1, 2), close_symbol(LANGUAGE, 1, 1),
        close_symbol(LANGUAGE, 0, 0),
    ]  # fmt: skip
    assert symbol_ids(LANGUAGE, tokens).tolist() == wanted


def test_one_hot():
    assert torch.equal(minimal_embedding(LANGUAGE, "one-hot"), torch.eye(13))


def test_type_and_depth():
    found = minimal_embedding(LANGUAGE, "type-depth")
    assert found.shape == (13, 5 + 4)
    # Type 1's closing bracket is the fourth token; after it the depth is 2.
    assert found[close_symbol(LANGUAGE, 1, 2)].tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert found[open_symbol(LANGUAGE, 0, 3)].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert found[0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_angle(depth):
    symbol = close_symbol(LANGUAGE, 0, depth) if depth < 3 else open_symbol(LANGUAGE, 0, depth)
    theta = atan(depth / (3 + 2 - depth))
    found = minimal_embedding(LANGUAGE, "angle")[symbol, -2:]
    assert found.tolist() == pytest.approx([cos(theta), sin(theta)], abs=1e-6)
