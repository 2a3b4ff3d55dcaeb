"""Which keys of a row each pattern names."""

import pytest
import torch

from identilens.errors import InputError
from identilens.measures.attention import pattern_keys

TOKENS = ["[CLS]", "a", "b", ",", "a", "c", "b", "[SEP]"]


def keys(pattern, query, visible=None):
    found = pattern_keys(pattern, TOKENS, query, visible)
    return None if found is None else found.nonzero().flatten().tolist()


def test_the_keys_of_each_pattern():
    assert [keys("previous", q) for q in (0, 1, 7)] == [None, [0], [6]]
    assert [keys("next", q) for q in (0, 7)] == [[1], None]
    assert keys("current", 3) == [3]
    assert keys("first", 5) == [0]
    assert [keys("duplicate", q) for q in (1, 4, 5)] == [[4], [1], None]
    assert [keys("induction", q) for q in (1, 4, 6, 3)] == [[5], [2], [3], None]
    assert keys("separator", 2) == [7]
    assert keys("punctuation", 2) == [3]
    assert pattern_keys("punctuation", [" ?!", "a.", " ", ","], 0).tolist() == [
        True, False, False, True,
    ]  # fmt: skip
    causal = torch.arange(8) <= 4
    assert keys("induction", 1, torch.arange(8) <= 1) is None
    assert keys("induction", 4, causal) == [2]
    assert keys("separator", 4, causal) is None
    assert keys("current", 0, torch.arange(8) < 1) is None, "it sees nothing else"
    for query in (-1, 8):
        with pytest.raises(InputError, match="patterns"):
            keys("previous", query)
    with pytest.raises(InputError, match="'other'"):
        keys("other", 1)
