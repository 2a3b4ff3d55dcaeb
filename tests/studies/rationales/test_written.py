"""What is said and drawn of explanations whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import rationales

CASES = {
    "two texts": rationales,
    "a text": lambda: rationales(1),
    "twelve texts": lambda: rationales(12),
    "twelve texts, no better than chance": lambda: rationales(12, lucky=0.4),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
